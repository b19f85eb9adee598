package spool

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// watch is an inotify(7) instance on one directory. Its descriptor is in Go's poller, so waiting needs no thread and
// no wake-ups.
type watch struct {
	f   *os.File
	buf [64 << 10]byte
}

// A request is complete when the server closes its file after writing. An answer is fetched when the server closes its file
// after reading. IN_ATTRIB reports a change of the directory's permissions. With this mask, the renaming of an answer and the
// removal of a file cause no events.
const watchMask = unix.IN_CLOSE_WRITE | unix.IN_CLOSE_NOWRITE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF |
	unix.IN_ATTRIB | unix.IN_EXCL_UNLINK | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW

func newWatch(d *dir) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w (sysctl fs.inotify.max_user_instances)", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, d.path, watchMask); err != nil {
		return nil, errors.Join(fmt.Errorf("inotify: %s: %w (sysctl fs.inotify.max_user_watches)", d.name, err), f.Close())
	}
	return &watch{f: f}, nil
}

// event is an event for one name in the directory, or for the directory itself.
type event struct {
	name     string
	written  bool // closed after writing
	read     bool // closed after reading
	changed  bool // the directory has another owner or mode
	overflow bool // the kernel dropped events: the whole directory must be searched
	lost     bool // the directory was removed or moved
}

// next waits for events until the time until, and calls handle for each event that it has read. If there are no events, it
// also returns nil. If ctx has ended, a call of wake makes next return at once.
func (w *watch) next(ctx context.Context, until time.Time, handle func(event)) error {
	if err := w.f.SetReadDeadline(until); err != nil {
		return err
	}
	select {
	case <-ctx.Done(): // wake may have been called before the deadline was set
		return nil
	default:
	}
	n, err := w.f.Read(w.buf[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	} else if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	eachEvent(w.buf[:n], handle)
	return nil
}

// wake makes a running call of next return.
func (w *watch) wake() { _ = w.f.SetReadDeadline(time.Unix(1, 0)) }

func (w *watch) close() error { return w.f.Close() }

// eachEvent parses a sequence of struct inotify_event (see inotify(7)), and calls handle for each.
func eachEvent(b []byte, handle func(event)) {
	for len(b) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(b[4:])
		size := int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size < 0 || size > len(b) {
			return
		}
		name, _, _ := bytes.Cut(b[:size], []byte{0})
		b = b[size:]
		handle(event{
			name:     string(name),
			written:  mask&unix.IN_CLOSE_WRITE != 0,
			read:     mask&unix.IN_CLOSE_NOWRITE != 0,
			changed:  mask&unix.IN_ATTRIB != 0 && len(name) == 0,
			overflow: mask&unix.IN_Q_OVERFLOW != 0,
			lost:     mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0,
		})
	}
}
