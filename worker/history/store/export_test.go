package store

// SetTogether sets the number of rows that Rows puts in order at a time.
func (r *Reader) SetTogether(n int) { r.together = n }
