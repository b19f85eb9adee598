package symbol_test

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/symbol"
)

// abbreviations replaces the long forms that c++filt writes for the Itanium ABI's abbreviations. rustDetails are
// parts that Demangle omits: types of constants, and hashes that distinguish crates and functions with the same name.
var abbreviations = strings.NewReplacer(
	"std::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string",
	"std::basic_istream<char, std::char_traits<char> >", "std::istream",
	"std::basic_ostream<char, std::char_traits<char> >", "std::ostream",
	"std::basic_iostream<char, std::char_traits<char> >", "std::iostream",
)

var rustDetails = regexp.MustCompile(`\[[0-9a-f]{1,16}\]|::h[0-9a-f]{16}\b|: [iu](?:size|8|16|32|64|128)\b`)

// TestDemangleRealSymbols compares the results with c++filt. It uses the C++ library's exported names, unchanged and
// as clones, and symbols of Rust programs in both manglings (testdata/rust-symbols.txt).
func TestDemangleRealSymbols(t *testing.T) {
	if _, err := exec.LookPath("c++filt"); err != nil {
		t.Skipf("nothing to compare with: %v", err)
	}
	text, err := os.ReadFile("testdata/rust-symbols.txt")
	if err != nil {
		t.Fatal(err)
	}
	rust := strings.Fields(string(text))
	compareDemangled(t, "rust", rust, func(s string) string { return rustDetails.ReplaceAllString(s, "") })
	libraries, _ := filepath.Glob("/usr/lib/*-linux-gnu/libstdc++.so.6")
	if len(libraries) == 0 {
		t.Skip("the C++ library is not installed")
	}
	all, err := openImage(t, libraries[0]).Symbols(".dynsym")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for s := range all {
		if name, _, _ := strings.Cut(s.Name, "@"); strings.HasPrefix(name, "_Z") && s.Type == elf.STT_FUNC {
			names = append(names, name, name+[]string{".cold", ".part.0", ".isra.0", ".constprop.1"}[len(names)/2%4])
		}
	}
	if len(names) < 1000 {
		t.Fatalf("%d names", len(names))
	}
	spaces := strings.NewReplacer("std::string >", "std::string>", "std::istream >", "std::istream>",
		"std::ostream >", "std::ostream>", "std::iostream >", "std::iostream>")
	compareDemangled(t, "auto", names, func(s string) string { return spaces.Replace(abbreviations.Replace(s)) })
}

// compareDemangled compares all names with c++filt.
func compareDemangled(t *testing.T, format string, names []string, normal func(string) string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "c++filt", "--format="+format)
	cmd.Stdin = strings.NewReader(strings.Join(names, "\n") + "\n")
	out, err := cmd.Output()
	want := slices.Collect(strings.Lines(string(bytes.TrimSpace(out))))
	if err != nil || len(want) != len(names) {
		t.Fatalf("c++filt: %d lines for %d names, %v", len(want), len(names), err)
	}
	wrong := 0
	for i, name := range names {
		got, want := normal(symbol.Demangle(name)), normal(strings.TrimSuffix(want[i], "\n"))
		if got == name || got != want {
			if wrong++; wrong <= 10 {
				t.Errorf("%s:\n%s, c++filt:\n%s", name, got, want)
			}
		}
	}
	figure.Printf(t, "%d names (%s), %d differ from c++filt's", len(names), format, wrong)
}
