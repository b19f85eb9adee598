package symbolize

import (
	"fmt"

	"pg_stat_backtrace/unwind/elfimage"
)

// Coverage has the numbers of functions of an image with and without names.
type Coverage struct {
	BuildID string
	// Functions is the number of functions in the image's call frame information. Named is the number of these with a
	// symbol.
	Functions, Named int
	// Derived is the number of functions without a symbol that get a name from the code of a stripped server. Noted is
	// the number of the other functions without a symbol that get a note.
	Derived, Noted int
}

// Cover counts the named functions of an ELF file. It also uses the separate debug file. It returns an error if the
// file has no call frame information.
func Cover(file string) (Coverage, error) {
	m, done, err := OpenImage(file, nil)
	if err != nil {
		return Coverage{}, err
	}
	defer func() { _ = done() }()
	var tables []*elfimage.Image
	if debug, err := elfimage.FindDebugFile(m.Image, m.Path, m.DebugOptions()[0]); err == nil {
		defer func() { _ = debug.Close() }()
		tables = append(tables, debug.Image)
	}
	c := Coverage{BuildID: m.BuildID()}
	if c.Named, c.Functions, err = m.Coverage(tables...); err != nil {
		return c, fmt.Errorf("%s: no call frame information or no symbols", file)
	}
	c.Derived, c.Noted = m.Derived(tables...)
	return c, nil
}
