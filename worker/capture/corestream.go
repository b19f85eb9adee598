package capture

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/worker/host/rootfs"
)

// standardInput is the name of a core file on the standard input.
const standardInput = "-"

// soughtBytes is how many bytes expander reads ahead to find out whether a zstd stream is short. A short stream may use
// only a small window (budget.Window), because the window takes memory.
const soughtBytes = 1 << 20

// openStream opens a file, or the standard input. It also returns the user with whose rights the files that the core
// names must be opened, because any user can write a core that names any file. This user is the core's owner.
// systemd-coredump(8) stores the cores of all users as root, with the user's id in an attribute, which is used then.
// For other cores that root owns, files are opened as root, but only regular files, and a file is used only if it has
// the same content as the core.
func openStream(name string, stdin *os.File) (*os.File, rootfs.User, error) {
	f := stdin
	if f == nil {
		f = os.Stdin
	}
	if name != standardInput {
		var err error
		if f, err = rootfs.Open(name); err != nil {
			return nil, rootfs.User{}, err
		}
	}
	if uid, ok := dumpedUser(f); ok {
		return f, rootfs.OfUser(uid), nil
	}
	user, err := rootfs.OfFile(name, f)
	if err != nil {
		_ = f.Close()
	}
	return f, user, err
}

// dumpedUser returns the user id that systemd-coredump has stored in an attribute of a core that root owns.
func dumpedUser(f *os.File) (uid int, ok bool) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Uid != 0 {
		return 0, false
	}
	value := make([]byte, 32)
	n, err := unix.Fgetxattr(int(f.Fd()), "user.coredump.uid", value)
	if err != nil {
		return 0, false
	}
	id, err := strconv.ParseUint(string(value[:n]), 10, 32)
	return int(id), err == nil
}

// openCoreFile returns a core file that can be read at any position, which the unwinder needs. It writes a compressed
// core, or a core from a pipe, to a temporary file without a name, and closes f. If the stream ends early, the result
// damage is the reason, and core has the data before the end. stored is the size of the input (the file or the stream,
// before expansion), in bytes.
func openCoreFile(name string, f *os.File) (core *os.File, stored int64, damage, err error) {
	head, stream, err := peek(f)
	if err != nil {
		_ = f.Close()
		return nil, 0, nil, fmt.Errorf("%s: %w", name, err)
	}
	space := budget.New(budget.Spool, "temporary space")
	stream = budget.Reader(stream, space)
	expanded, err := expander(head, stream)
	if err != nil {
		_ = f.Close()
		return nil, 0, nil, fmt.Errorf("%s: %w", name, err)
	}
	if expanded == nil && seekable(f) {
		info, err := f.Stat()
		if err != nil {
			_ = f.Close()
			return nil, 0, nil, fmt.Errorf("%s: %w", name, err)
		}
		return f, info.Size(), nil, nil
	}
	defer func() { _ = f.Close() }()
	if expanded == nil {
		expanded = stream
	}
	core, damage, err = spoolCore(name, expanded, space)
	return core, space.Input(), damage, err
}

// peek returns up to four bytes from the start of a file (head), and a reader of the whole file (all).
func peek(f *os.File) (head []byte, all io.Reader, err error) {
	head = make([]byte, 4)
	if seekable(f) {
		n, err := f.ReadAt(head, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, nil, err
		}
		_, err = f.Seek(0, io.SeekStart)
		return head[:n], f, err
	}
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, nil, err
	}
	return head[:n], io.MultiReader(bytes.NewReader(head[:n]), f), nil
}

func seekable(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular()
}

// expander returns a reader of the expanded data. The stream's first bytes (head) show the format. It returns nil if
// the stream is not compressed.
func expander(head []byte, stream io.Reader) (io.Reader, error) {
	switch {
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}): // RFC 8878, 3.1.1
		in := bufio.NewReaderSize(stream, soughtBytes)
		short, err := in.Peek(soughtBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		window := uint64(budget.Window.Of(int64(len(short))))
		r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(window))
		if err != nil {
			return nil, err
		}
		return windowReader{r, window}, nil
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}): // RFC 1952, 2.3.1
		r, err := gzip.NewReader(stream)
		if err != nil {
			return nil, err
		}
		return r, nil
	case bytes.HasPrefix(head, []byte{0x04, 0x22, 0x4d, 0x18}): // LZ4 Frame Format
		return lz4.NewReader(stream), nil
	}
	return nil, nil //nolint:nilnil // a stream that is not compressed is not an error
}

// windowReader adds a hint to the error for a zstd window that is too large.
type windowReader struct {
	r      io.Reader
	window uint64
}

func (w windowReader) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = fmt.Errorf("%w: the window of this short file may have %d MB: expand the file with zstd -d --long=31", err,
			w.window>>20)
	}
	return n, err
}

// spoolCore writes a stream to a file without a name in $TMPDIR or /var/tmp. Blocks of zeros become holes. The file
// takes at most half of the free space in that folder, and at most the bytes that the budget allows.
func spoolCore(name string, stream io.Reader, space *budget.Budget) (f *os.File, damage, err error) {
	folder := os.Getenv("TMPDIR")
	if folder == "" {
		folder = "/var/tmp"
	}
	if f, err = os.CreateTemp(folder, "pg_stat_backtrace-core"); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	if err = os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	size, damage, err := copySparse(f, stream, freeSpace(f)/2, space)
	if err == nil {
		err = f.Truncate(size)
	}
	if errors.Is(err, budget.ErrExceeded) {
		_ = f.Close()
		return nil, nil, fmt.Errorf("%s: %w: if the file is from a trusted source, expand it first", name, err)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("%s: %w in %s: set TMPDIR to a folder with more space", name, err,
			filepath.Clean(folder))
	}
	if damage != nil {
		damage = fmt.Errorf("%s: the data end early, after %d bytes: %w", name, size, damage)
	}
	return f, damage, nil
}

// errNoRoom means that the file system has too little space for the core, or that the core is too large.
var errNoRoom = errors.New("no room for the core")

// copySparse copies a stream to f, and leaves holes for blocks of zeros. It writes at most room bytes. The result size
// includes the holes. damage is the reason if the stream ended early. err is the reason if the data could not be
// written.
func copySparse(f *os.File, stream io.Reader, room int64, space *budget.Budget) (size int64, damage, err error) {
	block, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	written := int64(0)
	for {
		n, readErr := io.ReadFull(stream, block)
		if !bytes.Equal(block[:n], zeros[:n]) {
			if written += int64(n); written > room {
				return size, nil, errNoRoom
			}
			if err := space.Charge(int64(n), "the core"); err != nil {
				return size, nil, err
			}
			if _, err := f.WriteAt(block[:n], size); err != nil {
				return size, nil, fmt.Errorf("%w: %w", errNoRoom, err)
			}
		}
		size += int64(n)
		switch {
		case readErr == nil:
		case errors.Is(readErr, io.EOF), errors.Is(readErr, io.ErrUnexpectedEOF) && n > 0 && atEnd(stream):
			return size, nil, nil
		default:
			return size, readErr, nil
		}
		if size > maxCoreSize {
			return size, nil, errNoRoom
		}
	}
}

// maxCoreSize is the largest size of a core, holes included. A small compressed file may expand to zeros without end.
const maxCoreSize = 1 << 42

// atEnd reports whether a stream has ended normally. It is called after a short read.
func atEnd(stream io.Reader) bool {
	n, err := stream.Read(make([]byte, 1))
	return n == 0 && errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF)
}

// freeSpace returns the free space of a file's file system, in bytes.
func freeSpace(f *os.File) int64 {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0
	}
	return int64(st.Bavail) * int64(st.Bsize) //nolint:unconvert // 32 bits wide on s390x
}
