package store

// Add adds a note for the next sweep.
func (n *Notes) Add(text string) { n.add(text) }

// SetTogether sets the number of rows that Rows puts in order at a time.
func (r *Reader) SetTogether(n int) { r.together = n }
