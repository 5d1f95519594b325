"""Search by meaning and by words, offline: `python examples/search.py`. It needs `pip install 'holdall[local]'`."""

import holdall

store = holdall.open("memory:", embed="local")  # without embed=, a query finds by words alone
facts = ("users", "ada", "facts")
store.put(facts, "diet", {"text": "Ada cannot eat peanuts or almonds"})
store.put(facts, "home", {"text": "She lives in Zürich, near the lake"})
store.put(facts, "work", {"text": "She writes papers about Babbage's engines"})

for query in ("which nuts make her ill?", "her apartment", "publications", '"near the lake"'):
    best = store.search(("users", "ada"), query=query, limit=1)[0]
    print(f"{query:26} {best.score:.2f}  {best.value['text']}")
