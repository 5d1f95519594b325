"""The contract: what every engine must do, as pytest classes.

A test module of an engine subclasses `StoreContract` and gives the address of its stores:

    class TestMyEngine(StoreContract):
        @pytest.fixture
        def url(self, tmp_path):
            return str(tmp_path / "store")

        def open_store(self, url, **options):
            return holdall.open(lambda options: MyEngine(url, options), **options)

Every test runs twice, sync and async. To test one part only, subclass that part.
"""

from .batches import BatchContract
from .embedding import EmbeddingContract
from .erasing import EraseContract
from .feed import FeedContract
from .file_objects import FileObjectContract
from .file_values import FileValueContract
from .files import FileContract
from .filtering import FilterContract
from .finding import FindContract
from .history import HistoryContract
from .items import ItemContract
from .large_trees import LargeTreeContract
from .learning import LearningContract
from .leases import LeaseContract
from .lifecycle import LifecycleContract
from .lifetimes import LifetimeContract
from .listing import ListingContract
from .paths import PathContract
from .ranking import RankContract
from .records import RecordContract
from .refusals import RefusalContract
from .scopes import ScopeContract
from .searching import SearchContract
from .trees import TreeContract
from .watching import WatchContract

__all__ = ["StoreContract"]


class StoreContract(
    ItemContract,
    BatchContract,
    RefusalContract,
    FilterContract,
    LearningContract,
    SearchContract,
    RankContract,
    EmbeddingContract,
    ListingContract,
    LifetimeContract,
    ScopeContract,
    FeedContract,
    WatchContract,
    LeaseContract,
    FileContract,
    PathContract,
    TreeContract,
    LargeTreeContract,
    FindContract,
    FileObjectContract,
    FileValueContract,
    HistoryContract,
    EraseContract,
    RecordContract,
    LifecycleContract,
):
    """All parts of the contract."""
