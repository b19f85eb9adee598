package symbol

import (
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/ianlancetaylor/demangle"
)

const (
	// maxMangled limits the length of names that are demangled. maxDemangledShift is the base-2 logarithm of the
	// maximum length of results: back references can expand a short name to a very long one.
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
		// The names come from files that may be hostile. If a name makes the parser panic, it stays unchanged.
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
	case suffix == "" || strings.HasPrefix(suffix, ".llvm."): // the suffix .llvm. only identifies the module
		return out
	}
	return out + " [clone " + suffix + "]"
}

// legacyRust matches the beginning of Rust's legacy form: identifiers with their lengths, then a hash.
var legacyRust = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^_ZN.*17h[0-9a-f]{16}E`) })

// cutRust splits a Rust name into the part that package demangle supports, and the suffix, which package demangle would
// remove. ok is false for other names.
func cutRust(name string) (base, suffix string, ok bool) {
	at := strings.IndexByte(name, '.')
	switch {
	case strings.HasPrefix(name, "_R"):
	case strings.HasPrefix(name, "_ZN") && legacyRust().MatchString(name):
		at = len(legacyRust().FindString(name)) // the identifiers may contain dots
	default:
		return "", "", false
	}
	if at < 0 || at == len(name) {
		return name, "", true
	}
	return name[:at], name[at:], name[at] == '.'
}

// keepUnderscores adds an underscore to each identifier of the legacy form that begins with an underscore, because
// package demangle removes one. The removal is right only before an escape ("_$LT$"), so these identifiers stay
// unchanged.
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
