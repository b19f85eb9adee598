package limits

// JSON bounds what a JSON text from another user or host may contain. A decoder takes hundreds of bytes of memory for some elements
// of three bytes, so a bound on the length of the text is no bound on memory.
type JSON struct {
	Depth    int // open brackets
	Elements int // elements of all lists
	Members  int // members of all objects
}

// Allows reports whether a JSON text is within the bounds. It does not verify the text.
func (b JSON) Allows(text []byte) bool {
	var open []byte // the brackets that are open
	elements, members := 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			open = append(open, c)
		case '}', ']':
			open = open[:max(0, len(open)-1)]
		case ',':
			if len(open) > 0 && open[len(open)-1] == '[' {
				elements++
			} else {
				members++
			}
		}
		if len(open) > b.Depth || elements > b.Elements || members > b.Members {
			return false
		}
	}
	return true
}
