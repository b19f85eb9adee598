package capture

import (
	"fmt"
	"os"
	"path"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/image"
)

// Coverage is how much of an image has names.
type Coverage struct {
	BuildID string
	// Functions is the number of functions that the image's call frame
	// information lists, Named the number of those that a symbol names.
	Functions, Named int
}

// Cover counts the named functions of an ELF file.
func Cover(file string) (Coverage, error) {
	f, err := os.Open(file)
	if err != nil {
		return Coverage{}, err
	}
	defer func() { _ = f.Close() }()
	img, err := image.Open(f, path.Base(file))
	if err != nil {
		return Coverage{}, err
	}
	a, err := arch.ByMachine(img.Machine(), img.Order())
	if err != nil {
		return Coverage{}, err
	}
	m := &module{image: img, name: img.Name(), arch: a, path: file}
	if target, err := os.Readlink(file); err == nil {
		m.path = target // of /proc/PID/exe
	}
	table, symbols := m.table(), m.symbolTable()
	if table == nil || symbols == nil {
		return Coverage{BuildID: img.BuildID()}, fmt.Errorf("%s: no call frame information or no symbols", file)
	}
	c := Coverage{BuildID: img.BuildID()}
	c.Named, c.Functions = symbols.Coverage(func(yield func(start, end uint64) bool) {
		for fde := range table.FDEs {
			if !yield(fde.Start, fde.End) {
				return
			}
		}
	})
	return c, nil
}
