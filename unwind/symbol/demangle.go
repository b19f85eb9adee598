package symbol

import "github.com/ianlancetaylor/demangle"

const (
	// maxMangled bounds the names that are demangled, maxDemangledShift the results: back references let a short name
	// stand for a very long one.
	maxMangled        = 8 << 10
	maxDemangledShift = 14
)

// Demangle returns the source form of a C++ or Rust name (Itanium C++ ABI, chapter 5; Rust's legacy form and RFC 2603),
// with the suffix of a clone (".cold", ".part.0") kept, and any other name as it is. The result may contain spaces.
func Demangle(name string) (out string) {
	if len(name) > maxMangled {
		return name
	}
	defer func() {
		// The names come from foreign files: should one break the parser, it stays as it is.
		if recover() != nil {
			out = name
		}
	}()
	return demangle.Filter(name, demangle.MaxLength(maxDemangledShift))
}
