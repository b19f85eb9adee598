package capture

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/corefile"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/host/rootfs"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// Engine is the value of Trace.Engine for a core file.
const Engine = "core"

// CoreOptions configures the reading of a core file. The zero value is the default.
type CoreOptions struct {
	// Exe is the path of the program's file. If it is "", the path in the core is used.
	Exe string
	// Sysroot is a copy of the root directory of the host where the core was written. It is put before every path in the
	// core.
	Sysroot string
	// DebugDirs are the folders to search for debug files; nil means elfimage.DefaultFolder.
	DebugDirs []string
	// MaxFrames bounds each thread's frames; 0 means unwind.DefaultMaxFrames.
	MaxFrames int
	// Goroutines returns the goroutines of Go programs instead of threads.
	Goroutines bool
	// Stdin is the standard input; nil means os.Stdin.
	Stdin *os.File
}

// A CoreTrace is the result of reading a core file.
type CoreTrace struct {
	Trace *backtrace.Trace
	// Name is the program's name from the core, and Arch the name of its architecture. Signal is the signal that ended
	// the program, or 0 if none did.
	Name, Arch string
	Signal     int
	// Unproved has the paths of files that fit the core's addresses but cannot be verified: the core lacks their
	// build-id and all of their read-only memory.
	Unproved []string
	// Refused has the reasons for rejecting files: Exe is not the core's program, a library was replaced or is missing,
	// or the core is damaged. WrongExe is set if Exe was not used. LeftOut is the number of threads or goroutines that
	// are left out because budget.Stacks is used up.
	Refused  []error
	WrongExe bool
	LeftOut  int
	// Input is the size of the file as it was read, compressed or not, in bytes.
	Input int64
}

// ReadCore returns the named stacks of all threads in a core file of any architecture. The file may be compressed by
// zstd, gzip or lz4, and "-" is the standard input. Errors are those of package corefile. With CoreOptions.Goroutines,
// also naming.ErrNotGo and the errors of package golang are possible.
func ReadCore(file string, o CoreOptions) (*CoreTrace, error) {
	start := time.Now()
	stream, user, err := openStream(file, o.Stdin)
	if err != nil {
		return nil, err
	}
	f, stored, damage, err := openCoreFile(file, stream)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	core, err := corefile.Open(f, path.Base(file))
	if err != nil {
		return nil, errors.Join(err, damage)
	}
	r := &reader{
		core: core, options: o, user: user, memory: budget.New(budget.Stacks, "memory"),
		modules: make(map[moduleKey]openedFile),
		images:  symbolize.NewCache(core.Arch, &symbolize.Sources{Cache: dwarf.NewCache(0), Folders: o.DebugDirs}),
	}
	defer r.close()
	for _, err := range []error{damage, core.Damage} {
		if err != nil {
			r.refused = append(r.refused, err)
		}
	}
	r.memory.Credit(stored)
	r.findImages()
	r.checkExe()
	t, err := r.trace()
	if err != nil {
		return nil, errors.Join(append([]error{fmt.Errorf("%s: %w", core.Name(), err)}, r.refused...)...)
	}
	t.Total = time.Since(start)
	return &CoreTrace{
		Trace: t, Name: core.Process.Name, Arch: core.Arch.Name, Signal: core.Threads[0].Signal,
		Unproved: r.unproved, Refused: r.refused, WrongExe: r.wrongExe, LeftOut: r.leftOut,
		Input: stored,
	}, nil
}

// reader reads one core file.
type reader struct {
	core     *corefile.Core
	options  CoreOptions
	user     rootfs.User // opens the files that the core names
	images   *symbolize.Cache
	loaded   []loadedImage
	opened   []io.Closer
	modules  map[moduleKey]openedFile
	unproved []string
	refused  []error
	full     error // no more images are loaded, because their headers exceed the budget
	exeUsed  bool  // CoreOptions.Exe is used as the program
	wrongExe bool
	memory   *budget.Budget // for images and stacks
	leftOut  int
}

// moduleKey identifies an open file. The program (exe) may be opened with other rights than a library with the same
// path.
type moduleKey struct {
	path string
	exe  bool
}

// openedFile is an open file, and the module with the image in this file.
type openedFile struct {
	module *symbolize.Module
	file   openFile
}

// loadedImage is an image at its place in the core's memory.
type loadedImage struct {
	path   string
	module *symbolize.Module
	bias   uint64
	file   io.ReaderAt // nil: the image is in the core itself
}

func (r *reader) close() {
	for _, c := range r.opened {
		_ = c.Close()
	}
}

// findImages opens the files in the core's list of mapped files. If the core has no such list, findImages opens the
// program and the files in the dynamic linker's list.
func (r *reader) findImages() {
	r.loadAll(r.core.Mapped())
	exe := slices.IndexFunc(r.loaded, func(c loadedImage) bool { return c.path == exePath })
	if len(r.core.Files) > 0 || exe < 0 {
		return
	}
	r.loadAll(r.core.Linked(r.loaded[exe].module.Image, r.loaded[exe].bias))
}

// imageBytes is the number of bytes that an image needs in memory, with its segments and without its tables.
const imageBytes = 16 << 10

// loadAll loads images, as many as the budget allows.
func (r *reader) loadAll(mapped []corefile.Mapped) {
	for i := range mapped {
		err := r.full
		if err == nil {
			err = r.memory.Charge(imageBytes, "the images")
		}
		if err == nil {
			r.load(&mapped[i])
			err = r.full
		}
		if err != nil {
			r.refused = append(r.refused, fmt.Errorf("%d of %d images are left out: %w", len(mapped)-i, len(mapped), err))
			return
		}
	}
}

// exePath is the path of the program in reader.loaded.
const exePath = "\x00exe"

// load opens an image's file or, if no file fits, reads the image from the core's memory.
func (r *reader) load(m *corefile.Mapped) {
	var wrong error
	for _, file := range r.files(m) {
		key := moduleKey{file, m.Exe}
		if opened, ok := r.modules[key]; ok {
			err := r.again(m, file, opened)
			if err == nil {
				return
			}
			wrong = errors.Join(wrong, err)
			continue
		}
		img, closer, err := r.openImage(m, file)
		if errors.Is(err, elfimage.ErrNotELF) && !m.Exe {
			if !r.wasImage(m, err) { // the process had mapped no code of this file
				return // a data file needs no report
			}
			err = fmt.Errorf("the process had mapped code of this file: %w", err)
		}
		if err == nil {
			err = r.memory.Charge(img.Kept(), "the headers of images")
			if err != nil {
				_ = closer.Close()
				r.full = err
				return
			}
		}
		if err != nil {
			wrong = errors.Join(wrong, err)
			continue
		}
		bias, how, err := r.core.Check(m, img)
		if err != nil {
			_ = closer.Close()
			wrong = errors.Join(wrong, err)
			continue
		}
		r.exeUsed = r.exeUsed || m.Exe && r.options.Exe != ""
		if how == corefile.ByLayout {
			r.unproved = append(r.unproved, file)
		}
		r.opened = append(r.opened, closer)
		module := &symbolize.Module{
			Sources: r.images.Sources,
			Image:   img, Name: img.Name(), Arch: r.core.Arch, Path: m.Path, Root: r.options.Sysroot, User: r.user,
		}
		r.modules[key] = openedFile{module, closer}
		r.add(m, module, bias, closer)
		return
	}
	if wrong != nil {
		r.refused = append(r.refused, wrong)
	}
	if img := r.core.Image(m); img != nil {
		if bias, _, err := r.core.Check(m, img); err == nil {
			r.add(m, &symbolize.Module{
				Image: img, Name: symbolize.ModuleName(m.Path), Arch: r.core.Arch, User: r.user,
				Sources: r.images.Sources,
			}, bias, nil)
		}
	}
}

// again adds a file that is open already to the loaded images, at another address at which the process had mapped it.
// It does not open the file again, because a core can list a file very often.
func (r *reader) again(m *corefile.Mapped, file string, opened openedFile) error {
	bias, how, err := r.core.Check(m, opened.module.Image)
	if err != nil {
		return err
	}
	if how == corefile.ByLayout && !slices.Contains(r.unproved, file) {
		r.unproved = append(r.unproved, file)
	}
	r.exeUsed = r.exeUsed || m.Exe && r.options.Exe != ""
	r.add(m, opened.module, bias, opened.file)
	return nil
}

// wasImage reports whether a file that is not an ELF file now was an ELF file when the process mapped it. The first
// page in the core shows this. If the core does not have this page, wasImage returns true if the file is empty now, or
// if one of its mappings is executable.
func (r *reader) wasImage(m *corefile.Mapped, now error) bool {
	var magic [len(elf.ELFMAG)]byte
	if n, _ := r.core.ReadAt(m.Header, magic[:]); n == len(magic) {
		return string(magic[:]) == elf.ELFMAG
	}
	return errors.Is(now, errEmpty) || slices.ContainsFunc(m.Files, func(f corefile.File) bool {
		flags, ok := r.core.Flags(f.Start)
		return ok && flags&elf.PF_X != 0
	})
}

// checkExe sets wrongExe if CoreOptions.Exe is not used as the program.
func (r *reader) checkExe() {
	if r.options.Exe == "" || r.exeUsed {
		return
	}
	r.wrongExe = true
	if len(r.refused) == 0 {
		r.refused = append(r.refused, fmt.Errorf("%s: %w: the core does not say where its program lies",
			r.options.Exe, corefile.ErrMismatch))
	}
}

// add adds an image to the field loaded.
func (r *reader) add(m *corefile.Mapped, mod *symbolize.Module, bias uint64, file io.ReaderAt) {
	c := loadedImage{path: m.Path, module: mod, bias: bias, file: file}
	if m.Exe {
		c.path = exePath
	}
	r.loaded = append(r.loaded, c)
}

// files returns the path to try for an image, or none.
func (r *reader) files(m *corefile.Mapped) []string {
	switch {
	case m.Exe && r.options.Exe != "":
		return []string{r.options.Exe}
	case m.Path == "" || !path.IsAbs(m.Path):
		return nil
	}
	return []string{filepath.Join(r.options.Sysroot, filepath.FromSlash(m.Path))}
}

// openFile is the open file of an image.
type openFile interface {
	io.ReaderAt
	io.Closer
}

// errEmpty means that a file is empty.
var errEmpty = errors.New("the file is empty")

// openImage opens the ELF file of a mapping. It opens a path that comes from the core with the ids of r.user, but
// CoreOptions.Exe like any file that the user of this program names (rootfs.Open).
func (r *reader) openImage(m *corefile.Mapped, file string) (*elfimage.Image, openFile, error) {
	var f *os.File
	var err error
	switch {
	case m.Exe && r.options.Exe != "":
		f, err = rootfs.Open(file)
	case r.options.Sysroot != "":
		f, err = r.user.OpenBelow(r.options.Sysroot, filepath.FromSlash(m.Path))
	default:
		f, err = r.user.Open(file)
	}
	if err != nil {
		return nil, nil, err
	}
	img, err := elfimage.Open(f, path.Base(file))
	if err != nil {
		if info, failed := f.Stat(); failed == nil && info.Size() == 0 {
			err = fmt.Errorf("%w: %w", err, errEmpty)
		}
		_ = f.Close()
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	return img, f, nil
}

// trace walks and names all threads, or all goroutines with CoreOptions.Goroutines.
func (r *reader) trace() (*backtrace.Trace, error) {
	t := &backtrace.Trace{PID: r.core.Process.PID, Engine: Engine, Threads: []backtrace.Thread{}}
	sp, backing := r.space()
	mem := corefile.NewMemory(r.core, backing)
	if r.options.Goroutines {
		return t, r.goroutines(t, sp, mem)
	}
	t.Threads = make([]backtrace.Thread, len(r.core.Threads))
	u := unwind.Unwinder{Arch: r.core.Arch, MaxFrames: r.options.MaxFrames, Final: true}
	var frames []unwind.Frame
	for i := range r.core.Threads {
		th := &r.core.Threads[i]
		began := time.Now()
		var stop unwind.Stop
		frames, stop = u.Unwind(frames[:0], th.Registers, mem, space{Space: sp, mem: mem})
		walked := time.Now()
		out := backtrace.Thread{TID: th.TID, Stop: stop.String(), Whole: stop.Whole()}
		var cut bool
		limit := naming.FrameLimit(r.options.MaxFrames)
		if out.Frames, cut = sp.Name(frames, limit, nil); cut { // nil: no deadline for a core file
			out.Stop, out.Whole = unwind.MaxFrames.String(), false
		}
		if err := r.memory.Charge(stackBytes(&out), "the stacks"); err != nil {
			r.leftOut = len(t.Threads) - i
			r.refused = append(r.refused, fmt.Errorf("%d of %d threads are left out: %w", r.leftOut, len(t.Threads), err))
			t.Threads = t.Threads[:i]
			break
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

// stackBytes estimates the bytes of memory for a named stack and its text.
func stackBytes(th *backtrace.Thread) int64 {
	const frame, escaped = 1 << 9, 8 // a byte of a name may become four in the text, and the text is copied
	n := frame
	for i := range th.Frames {
		f := &th.Frames[i]
		n += frame + escaped*(len(f.Function)+len(f.File)+len(f.Module)+len(f.Note))
	}
	return int64(n)
}
