"""What plans are made of: tensors, links, boxes of elements, unit tasks; and the compiled core."""
