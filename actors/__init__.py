"""The kit: channels, mailboxes, actors and their supervisor. It knows nothing of language models."""

from .actor import Actor as Actor
from .actor import ActorStatus as ActorStatus
from .channel import Channel as Channel
from .channel import ChannelStatistics as ChannelStatistics
from .errors import ActorStoppedError as ActorStoppedError
from .errors import BusyError as BusyError
from .errors import CallboardError as CallboardError
from .errors import ChannelClosedError as ChannelClosedError
from .errors import ChannelEmptyError as ChannelEmptyError
from .errors import ChannelFullError as ChannelFullError
from .errors import ConfigError as ConfigError
from .errors import CycleError as CycleError
from .errors import WrongLoopError as WrongLoopError
from .loop_watch import LatenessStatistics as LatenessStatistics
from .loop_watch import LoopWatch as LoopWatch
from .mailbox import Mailbox as Mailbox
from .observation import Observer as Observer
from .reply import Ask as Ask
from .reply import Reply as Reply
from .signal import Signal as Signal
from .supervisor import Restart as Restart
from .supervisor import Supervisor as Supervisor
from .threads import LoopPort as LoopPort
