"""A LangChain chat with a history and a cache of model answers that survive a restart.

    python examples/langchain_chat.py                     in a file that is gone afterwards
    python examples/langchain_chat.py postgresql://…      ... or there, with nothing else changed

It needs holdall[langchain]. The model is scripted, so that this runs without a network.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from langchain_core.globals import set_llm_cache
from langchain_core.language_models import FakeListLLM

import holdall
from holdall.faces.langchain import HoldallCache, HoldallChatMessageHistory


def turn(store: holdall.Store, question: str, model: FakeListLLM) -> str:
    """One turn, as a process of its own would do it."""
    history = HoldallChatMessageHistory("ada-1", store)
    history.add_user_message(question)
    answer = model.invoke(question)
    history.add_ai_message(answer)
    return answer


def main(url: str) -> None:
    with holdall.open(url) as store:
        set_llm_cache(HoldallCache(store, ttl=24 * 3600))
        model = FakeListLLM(responses=["Peanuts.", "I was asked again."])
        print(turn(store, "What may I not eat?", model))
        print("from the cache:", turn(store, "What may I not eat?", model))
        print("messages:", len(HoldallChatMessageHistory("ada-1", store).messages))
        set_llm_cache(None)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else str(Path(folder) / "agent.db"))
