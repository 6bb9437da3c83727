"""LangChain over a collection: docstrings of Python's standard library as documents.

    pip install 'antipodal[langchain]'
    python examples/langchain_search.py

The embedding is TF-IDF, so that nothing is downloaded. Any `Embeddings` of LangChain works.
"""

import importlib
import inspect

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from antipodal.integrations.langchain import AntipodalVectorStore

MODULES = "re string textwrap difflib datetime calendar time math random statistics json csv shutil"


class TfidfEmbeddings(Embeddings):
    """Texts as vectors of 64 dimensions, by latent semantic analysis."""

    def __init__(self, texts):
        terms = TfidfVectorizer(sublinear_tf=True, stop_words="english")
        self.model = make_pipeline(terms, TruncatedSVD(64, random_state=0)).fit(texts)

    def embed_documents(self, texts):
        """Return the vectors of texts."""
        return self.model.transform(texts).tolist()

    def embed_query(self, text):
        """Return the vector of a text."""
        return self.embed_documents([text])[0]


documents = [
    Document(id=f"{module}.{name}", page_content=inspect.getdoc(thing), metadata={"module": module})
    for module in MODULES.split()
    for name, thing in sorted(vars(importlib.import_module(module)).items())
    if inspect.isroutine(thing) and inspect.getdoc(thing) and not name.startswith("_")
]
embedding = TfidfEmbeddings([document.page_content for document in documents])

# The file holds codes of 16 bytes, texts, metadata, and vectors as int8 for reranking.
store = AntipodalVectorStore.from_documents(documents, embedding, place="python.db", bytes=16)
print(f"{store.collection.count()} documents in python.db")
for document, score in store.similarity_search_with_score("copy a directory tree", k=3):
    print(f"  {score:.2f} {document.id}")

only = store.similarity_search("a random number", k=3, filter={"module": {"$ne": "random"}})
print("not in random:", ", ".join(document.id for document in only))

retriever = store.as_retriever(search_type="mmr", search_kwargs={"k": 3, "fetch_k": 30})
print("unlike each other:", ", ".join(d.id for d in retriever.invoke("parse JSON")))
store.close()  # `AntipodalVectorStore(embedding, "python.db")` opens it again
