"""Every seam of perdure as a small Protocol."""
