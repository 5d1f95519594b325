"""The engines: each keeps entries in one kind of storage. Only `holdall.core.urls` names them."""
