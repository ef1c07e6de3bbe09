"""Steps that others measured on real clusters, predicted with the plans that they ran."""
