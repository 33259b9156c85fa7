"""Authorization: policy documents, the evaluator, versions. Gives a `Decision`; does no counting."""
