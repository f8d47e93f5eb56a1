"""Results for people: text, HTML, Perfetto timelines, figures, notebooks. It computes nothing."""
