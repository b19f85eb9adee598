package coredump

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/corefile"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/procmap"
	"pg_stat_backtrace/worker/symbolize"
	"pg_stat_backtrace/worker/trace"
)

// Engine is a trace's engine when it was read from a core file.
const Engine = "core"

// Options says how a core file is read; the zero value is the default.
type Options struct {
	// Exe is the program's file, "" to look for it where the core says that it was.
	Exe string
	// Sysroot is put before every path that the core names: the root directory of the host that it comes from.
	Sysroot string
	// MaxFrames bounds each thread's frames; 0 means unwind.DefaultMaxFrames.
	MaxFrames int
	// Goroutines takes those of Go programs instead of threads.
	Goroutines bool
	// Stdin is the standard input; nil: os.Stdin.
	Stdin *os.File
}

// A Trace is the result of reading a core file.
type Trace struct {
	Trace *trace.Trace
	// Name is the program's name as the core has it, Arch its architecture, Signal what ended it, 0 if nothing did.
	Name, Arch string
	Signal     int
	// Unproved names the files that fit the core's addresses, of which it holds nothing to compare: neither a build-id
	// nor any of what is read-only.
	Unproved []string
	// Refused says why files were not used: Exe is not the program of this core, a library was replaced, is not
	// there, or the core is damaged. WrongExe is set if it is Exe that was refused.
	Refused  []error
	WrongExe bool
}

// Read returns the named stacks of all threads of a core file, of any architecture. The file may be compressed by zstd,
// gzip or lz4, and "-" is the standard input. The files of the images are kept
// open until the trace is made. Errors are those of package corefile; of goroutines also ErrNotGo and package
// goroutine's.
func Read(file string, o Options) (*Trace, error) {
	start := time.Now()
	f, damage, err := openCoreFile(file, o.Stdin)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	core, err := corefile.Open(f, path.Base(file))
	if err != nil {
		return nil, errors.Join(err, damage)
	}
	r := &reader{
		core: core, options: o, images: symbolize.NewCache(core.Arch, &symbolize.Sources{Cache: dwarf.NewCache(0)}),
	}
	defer r.close()
	for _, err := range []error{damage, core.Damage} {
		if err != nil {
			r.refused = append(r.refused, err)
		}
	}
	r.findImages()
	t, err := r.trace()
	if err != nil {
		return nil, errors.Join(append([]error{fmt.Errorf("%s: %w", core.Name(), err)}, r.refused...)...)
	}
	t.Total = time.Since(start)
	return &Trace{
		Trace: t, Name: core.Process.Name, Arch: core.Arch.Name, Signal: core.Threads[0].Signal,
		Unproved: r.unproved, Refused: r.refused, WrongExe: r.wrongExe,
	}, nil
}

// coreReader reads one core file.
type reader struct {
	core     *corefile.Core
	options  Options
	images   *symbolize.Cache
	loaded   []loadedImage
	opened   []io.Closer
	unproved []string
	refused  []error
	wrongExe bool
}

// coreImage is an image at its place.
type loadedImage struct {
	path   string
	module *symbolize.Module
	bias   uint64
	file   io.ReaderAt // nil: in the core itself
}

func (r *reader) close() {
	for _, c := range r.opened {
		_ = c.Close()
	}
}

// findImages opens what the core names, and, where it has no list of files, what the dynamic linker's list names.
func (r *reader) findImages() {
	mapped := r.core.Mapped()
	for i := range mapped {
		r.load(&mapped[i])
	}
	exe := slices.IndexFunc(r.loaded, func(c loadedImage) bool { return c.path == exePath })
	if len(r.core.Files) > 0 || exe < 0 {
		return
	}
	linked := r.core.Linked(r.loaded[exe].module.Image, r.loaded[exe].bias)
	for i := range linked {
		r.load(&linked[i])
	}
}

// exePath marks the program among the images.
const exePath = "\x00exe"

// load finds an image's file, or reads it from the core's own memory.
func (r *reader) load(m *corefile.Mapped) {
	var wrong error
	for _, file := range r.files(m) {
		img, closer, err := openImage(file)
		if errors.Is(err, elfimage.ErrNotELF) && !m.Exe {
			return // a file of data
		}
		if err != nil {
			wrong = errors.Join(wrong, err)
			continue
		}
		bias, how, err := r.core.Check(m, img)
		if err != nil {
			_ = closer.Close()
			wrong = errors.Join(wrong, err)
			r.wrongExe = r.wrongExe || m.Exe && r.options.Exe != ""
			continue
		}
		if how == corefile.ByLayout {
			r.unproved = append(r.unproved, file)
		}
		r.opened = append(r.opened, closer)
		r.add(m, &symbolize.Module{
			Sources: r.images.Sources,
			Image:   img, Name: img.Name(), Arch: r.core.Arch, Path: m.Path, Root: r.options.Sysroot,
		}, bias, closer)
		return
	}
	if wrong != nil {
		r.refused = append(r.refused, wrong)
	}
	if img := r.core.Image(m); img != nil {
		if bias, _, err := r.core.Check(m, img); err == nil {
			r.add(m, &symbolize.Module{
				Image: img, Name: symbolize.ModuleName(m.Path), Arch: r.core.Arch, Sources: r.images.Sources,
			}, bias, nil)
		}
	}
}

// add remembers an image.
func (r *reader) add(m *corefile.Mapped, mod *symbolize.Module, bias uint64, file io.ReaderAt) {
	c := loadedImage{path: m.Path, module: mod, bias: bias, file: file}
	if m.Exe {
		c.path = exePath
	}
	r.loaded = append(r.loaded, c)
}

// files lists the paths to try for an image.
func (r *reader) files(m *corefile.Mapped) []string {
	switch {
	case m.Exe && r.options.Exe != "":
		return []string{r.options.Exe}
	case m.Path == "" || !path.IsAbs(m.Path):
		return nil
	}
	return []string{filepath.Join(r.options.Sysroot, filepath.FromSlash(m.Path))}
}

// openFile is an image's file.
type openFile interface {
	io.ReaderAt
	io.Closer
}

// openImage opens an ELF file.
func openImage(file string) (*elfimage.Image, openFile, error) {
	f, _, err := symbolize.Candidate(file).File()
	if err != nil {
		return nil, nil, err
	}
	img, err := elfimage.Open(f, path.Base(file))
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return img, f, nil
}

// trace walks and names all threads, or goroutines.
func (r *reader) trace() (*trace.Trace, error) {
	t := &trace.Trace{PID: r.core.Process.PID, Engine: Engine, Threads: []trace.Thread{}}
	sp, backing := r.space()
	mem := corefile.NewMemory(r.core, backing)
	if r.options.Goroutines {
		return t, r.goroutines(t, sp, mem)
	}
	t.Threads = make([]trace.Thread, len(r.core.Threads))
	u := unwind.Unwinder{Arch: r.core.Arch, MaxFrames: r.options.MaxFrames, Final: true}
	var frames []unwind.Frame
	for i := range r.core.Threads {
		th := &r.core.Threads[i]
		began := time.Now()
		var stop unwind.Stop
		frames, stop = u.Unwind(frames[:0], th.Registers, mem, space{Space: sp, mem: mem})
		walked := time.Now()
		out := trace.Thread{TID: th.TID, Stop: stop.String(), Whole: stop.Whole()}
		var cut bool
		limit := procmap.FrameLimit(r.options.MaxFrames)
		if out.Frames, cut = sp.Name(frames, limit, nil); cut { // nil: nobody waits behind a core file
			out.Stop, out.Whole = unwind.MaxFrames.String(), false
		}
		t.Threads[i] = out
		t.Unwind += walked.Sub(began)
		t.Symbolize += time.Since(walked)
	}
	if len(t.Threads) > 0 {
		t.Threads[0].Name, t.Threads[0].State = r.core.Process.Name, r.core.Process.State
	}
	return t, nil
}

var _ cfi.Memory = (*corefile.Memory)(nil)
