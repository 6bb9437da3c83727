"""Collections and codes in the interfaces of other projects.

Each module is named after its project: `langchain`, `llamaindex`, `haystack`, `datasets`, `mteb`
and `sentence_transformers`. The document stores share `lazy_collection`.
"""
