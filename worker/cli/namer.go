package cli

import (
	"errors"
	"fmt"
	"slices"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
	"pg_stat_backtrace/worker/report/compressed"
)

// namer finds the functions of addresses in files and in the images of a process.
type namer struct {
	files   []symbolize.Image
	process *symbolize.Mapped
	closers []func() error
	notes   []string
}

// openNamer opens the files of --exe and the images of the process of --pid.
func openNamer(exe []string, pid int, debugDirs []string) (*namer, error) {
	n := &namer{}
	for _, file := range exe {
		img, closer, err := symbolize.OpenImage(file, debugDirs)
		if err != nil {
			n.close()
			return nil, fmt.Errorf("could not open %s: %w", file, err)
		}
		n.files, n.closers = append(n.files, img), append(n.closers, closer)
	}
	if pid > 0 {
		process, err := symbolize.MappedImages(pid, debugDirs)
		if err != nil {
			n.close()
			switch {
			case console.IsGone(err):
				return nil, errors.New(console.NoProcess(pid))
			case console.IsDenied(err):
				return nil, errors.New(console.DeniedProcess(pid))
			}
			return nil, fmt.Errorf("could not read the mappings of process %d: %w", pid, err)
		}
		n.process = process
	}
	return n, nil
}

func (n *namer) close() {
	for _, closer := range n.closers {
		_ = closer()
	}
}

// any reports whether there are files or a process in which to find functions.
func (n *namer) any() bool { return len(n.files) > 0 || n.process != nil }

// place returns the frames of an address in an image that a ~i# line of the input describes.
func (n *namer) place(p compressed.Place, isReturn bool) []backtrace.Frame {
	img, ok := n.image(p)
	if !ok {
		return []backtrace.Frame{{Address: p.Address, Module: p.Name, BuildID: p.BuildID, Offset: p.Address}}
	}
	return img.Frames(p.Address, isReturn)
}

// image finds the image of a place by its build-id. If the place and the file both have no build-id, it finds the file by
// its name, and adds a note.
func (n *namer) image(p compressed.Place) (symbolize.Image, bool) {
	for _, img := range n.files {
		switch {
		case p.BuildID != "" && img.BuildID() == p.BuildID:
			return img, true
		case p.BuildID == "" && img.BuildID() == "" && img.Name() == p.Name:
			n.note(p.Name + " has no build-id: it cannot be verified that it is the file of the backtraces")
			return img, true
		case img.Name() == p.Name && p.BuildID != "":
			n.note(fmt.Sprintf("%s has the build-id %s, not %s of the backtraces, and is not used",
				img.Path, img.BuildID(), p.BuildID))
		}
	}
	if n.process != nil {
		return n.process.ByBuildID(p.BuildID)
	}
	return symbolize.Image{}, false
}

// note keeps a remark that is printed at the end. Equal remarks are kept once.
func (n *namer) note(text string) {
	const most = 100
	if !slices.Contains(n.notes, text) && len(n.notes) < most {
		n.notes = append(n.notes, text)
	}
}

// address returns the frames of an address for which the input names no image. It looks up the address in the process
// or, without a process, in the first file.
func (n *namer) address(addr uint64, isReturn bool) []backtrace.Frame {
	if n.process != nil {
		img, at, ok := n.process.At(addr)
		if !ok {
			return []backtrace.Frame{{Address: addr, Module: "[no image]", Offset: addr}}
		}
		frames := img.Frames(at, isReturn)
		for i := range frames {
			frames[i].Address = addr
		}
		return frames
	}
	if len(n.files) == 0 {
		return []backtrace.Frame{{Address: addr, Module: "[no image]", Offset: addr}}
	}
	return n.files[0].Frames(addr, isReturn)
}
