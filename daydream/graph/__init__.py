"""The graph of causes: tasks on lanes, what each waits for, and the edits of them."""
