package symbolize

import (
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// Frames names an address of the image. It returns the calls inlined at the address, innermost first, and then the
// function that contains them. If isReturn is set, it looks up the call before the address. Frames waits until symbols
// and lines have been read.
func (m *Image) Frames(addr uint64, isReturn bool) []backtrace.Frame {
	lookup := addr
	if isReturn && addr > 0 {
		lookup--
	}
	out := backtrace.Frame{
		Address: addr, Module: m.Name(), BuildID: m.BuildID(), ModuleOffset: addr, Offset: addr,
	}
	return m.module.AppendFrames(nil, &out, lookup, nil, nil)
}

// Mapped has the images of a process at their addresses.
type Mapped struct {
	pid    int
	maps   []process.Mapping
	images *Cache
	known  map[int]Placed
}

// MappedImages reads the mappings of a process. debugDirs has the meaning of Config.DebugDirs.
func MappedImages(pid int, debugDirs []string) (*Mapped, error) {
	host := arch.Host()
	if host == nil {
		return nil, ErrArchitecture
	}
	maps, err := process.Maps(pid)
	if err != nil {
		return nil, err
	}
	return &Mapped{
		pid: pid, maps: maps, images: NewCache(host, &Sources{Folders: debugDirs}), known: make(map[int]Placed),
	}, nil
}

// At returns the image that the process has at an address, and the link-time address in the image. It returns false if
// the address is not in the code of an image.
func (p *Mapped) At(addr uint64) (Image, uint64, bool) {
	for i := range p.maps {
		m := &p.maps[i]
		if addr < m.Start || addr >= m.End || m.Perms&process.Exec == 0 {
			continue
		}
		f := p.find(i)
		if f.Module == nil {
			break
		}
		return Image{Image: f.Module.Image, Path: m.Path, module: f.Module}, addr - f.Bias, true
	}
	return Image{}, 0, false
}

// ByBuildID returns the image with the build-id id. It returns false if the process has none.
func (p *Mapped) ByBuildID(id string) (Image, bool) {
	for i := range p.maps {
		if p.maps[i].Perms&process.Exec == 0 {
			continue
		}
		if f := p.find(i); f.Module != nil && id != "" && f.Module.Image.BuildID() == id {
			return Image{Image: f.Module.Image, Path: p.maps[i].Path, module: f.Module}, true
		}
	}
	return Image{}, false
}

func (p *Mapped) find(i int) Placed {
	f, ok := p.known[i]
	if !ok {
		late := &Deadline{After: imagesTime}
		defer late.Stop()
		f = p.images.mappedBefore(late, p.pid, p.maps, i)
		p.known[i] = f
	}
	return f
}
