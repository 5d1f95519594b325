"""The engines: each keeps entries in one kind of storage. Only `holdall.urls` names them."""
