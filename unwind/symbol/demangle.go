package symbol

import (
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/ianlancetaylor/demangle"
)

const (
	// maxMangled limits the length of names that are demangled, maxDemangledShift the length of results: back
	// references can expand a short name to a very long one.
	maxMangled        = 8 << 10
	maxDemangledShift = 14
)

// Demangle returns the source form of a C++ or Rust name (Itanium C++ ABI, chapter 5; Rust's legacy form and RFC
// 2603). It keeps the suffix of a clone (".cold", ".part.0"), and returns any other name unchanged. The result may
// contain spaces.
func Demangle(name string) (out string) {
	if len(name) > maxMangled {
		return name
	}
	defer func() {
		// The names come from foreign files. If a name makes the parser panic, it stays unchanged.
		if recover() != nil {
			out = name
		}
	}()
	base, suffix, ok := cutRust(name)
	if !ok {
		return demangle.Filter(name, demangle.MaxLength(maxDemangledShift))
	}
	out = demangle.Filter(keepUnderscores(base), demangle.MaxLength(maxDemangledShift))
	switch {
	case strings.HasPrefix(out, "_ZN") || out == base:
		return name
	case suffix == "" || strings.HasPrefix(suffix, ".llvm."): // which module it was compiled in
		return out
	}
	return out + " [clone " + suffix + "]"
}

// legacyRust matches Rust's legacy form: identifiers with their lengths, then a hash.
var legacyRust = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^_ZN.*17h[0-9a-f]{16}E`) })

// cutRust splits a Rust name into the part that the library supports and the suffix, which the library would drop. It
// is false for other names.
func cutRust(name string) (base, suffix string, ok bool) {
	at := strings.IndexByte(name, '.')
	switch {
	case strings.HasPrefix(name, "_R"):
	case strings.HasPrefix(name, "_ZN") && legacyRust().MatchString(name):
		at = len(legacyRust().FindString(name)) // there may be dots before
	default:
		return "", "", false
	}
	if at < 0 || at == len(name) {
		return name, "", true
	}
	return name[:at], name[at:], name[at] == '.'
}

// keepUnderscores adds an underscore to each identifier of the legacy form that begins with one. The library removes
// one underscore, which is right only before an escape ("_$LT$", which begins with a letter so).
func keepUnderscores(name string) string {
	rest, ok := strings.CutPrefix(name, "_ZN")
	if !ok {
		return name
	}
	out := strings.Builder{}
	out.WriteString("_ZN")
	for rest != "E" {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		n, err := strconv.Atoi(rest[:digits])
		if err != nil || n > len(rest)-digits {
			return name
		}
		id := rest[digits:][:n]
		rest = rest[digits+n:]
		if strings.HasPrefix(id, "_") && !strings.HasPrefix(id, "_$") {
			id = "_" + id
		}
		out.WriteString(strconv.Itoa(len(id)) + id)
	}
	out.WriteByte('E')
	return out.String()
}
