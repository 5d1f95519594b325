"""A LlamaIndex index whose documents, vectors and chats are in one store, where plain holdall finds them too.

    python examples/llama_index_documents.py                     in a file that is gone afterwards
    python examples/llama_index_documents.py postgresql://…      ... or there, with nothing else changed

It needs holdall[llama-index]. The embedding model is a stand-in, so that this runs without a network.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.embeddings import MockEmbedding

import holdall
from holdall.faces.llama_index import HoldallChatStore, HoldallDocumentStore, HoldallVectorStore


def main(url: str) -> None:
    model = MockEmbedding(embed_dim=8)
    with holdall.open(url) as store:
        vectors = HoldallVectorStore(store, embed_model=model)
        storage = StorageContext.from_defaults(docstore=HoldallDocumentStore(store), vector_store=vectors)
        documents = [Document(text="Ada is allergic to peanuts", id_="diet")]
        VectorStoreIndex.from_documents(documents, storage_context=storage, embed_model=model)

        again = VectorStoreIndex.from_vector_store(HoldallVectorStore(store, embed_model=model), embed_model=model)
        print("through LlamaIndex:", again.as_retriever().retrieve("peanuts")[0].text)
        print("through holdall:", store.search(("nodes",), query="peanut")[0].value["text"])

        HoldallChatStore(store).add_message("ada", ChatMessage(role="user", content="Hello"))
        print("chat:", [message.content for message in HoldallChatStore(store).get_messages("ada")])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else str(Path(folder) / "agent.db"))
