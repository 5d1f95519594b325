"""The contract: what every engine must do, as pytest classes.

An engine's own test file subclasses `StoreContract` and says where its stores are:

    class TestMyEngine(StoreContract):
        @pytest.fixture
        def url(self, tmp_path):
            return str(tmp_path / "store")

        def open_store(self, url, **options):
            return holdall.open(lambda options: MyEngine(url, options), **options)

Every test runs twice, sync and async. A parallel suite for one part only can subclass that part alone.
"""

from .batches import BatchContract
from .embedding import EmbeddingContract
from .feed import FeedContract
from .files import FileContract
from .filtering import FilterContract
from .finding import FindContract
from .input import InputContract
from .items import ItemContract
from .leases import LeaseContract
from .lifecycle import LifecycleContract
from .lifetimes import LifetimeContract
from .listing import ListingContract
from .paths import PathContract
from .pieces import PieceContract
from .ranking import RankContract
from .scopes import ScopeContract
from .searching import SearchContract
from .shapes import ShapeContract
from .trees import TreeContract
from .watching import WatchContract

__all__ = ["StoreContract"]


class StoreContract(
    ItemContract,
    BatchContract,
    InputContract,
    FilterContract,
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
    FindContract,
    PieceContract,
    ShapeContract,
    LifecycleContract,
):
    """Everything."""
