package spool

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// spares is the number of prepared files for short answers.
const spares = 8

// spareSize is the size of a prepared file, in bytes. On tmpfs, overwriting an existing page takes no further memory.
const spareSize = 4096

// deliver writes the answer to the file that the caller reads, unless the call was abandoned. If there is no room, it delivers
// a short error instead.
func (s *Spool) deliver(c *call, req Request, a Answer) {
	data := a.encode(req.Encoding)
	wanted, room := s.calls.deliver(c, int64(len(data)), time.Now())
	if !wanted {
		return
	}
	err := s.writeIf(room, c.answer, data)
	if err != nil {
		s.cfg.report(fmt.Errorf("answer to %s: %w", req.ID, err))
		s.recheckRoom()
		hint := "The file system of its spool directory is full."
		if errors.Is(err, unix.EFBIG) {
			hint = "The size of the worker's files is limited, as by LimitFSIZE= or ulimit -f."
		}
		s.cfg.report(s.deliverSpare(c.answer, failure("53100", "no space left for the answer of the pg_stat_backtrace worker", hint)))
	}
	if room && s.calls.abandoned(c) { // it was abandoned while its answer was written
		s.cfg.report(s.dir.unlink(c.answer))
	}
}

func (s *Spool) writeIf(room bool, name string, data []byte) error {
	if !room {
		return ErrFull
	}
	return s.write(name, data)
}

// write writes a file in the work directory and renames it, so that readers see only complete files.
func (s *Spool) write(name string, data []byte) error {
	temporary := workName + "/" + name
	if err := s.create(temporary, data); err != nil {
		return err
	}
	if err := unix.Renameat(s.dir.fd(), temporary, s.dir.fd(), name); err != nil {
		return errors.Join(err, s.dir.unlink(temporary))
	}
	return nil
}

// create makes a file with the given contents. If it fails, it removes the file.
func (s *Spool) create(name string, data []byte) error {
	fd, err := unix.Openat(s.dir.fd(), name, newFile, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(writeAll(fd, data), unix.Close(fd)); err != nil {
		return errors.Join(err, s.dir.unlink(name))
	}
	return nil
}

const newFile = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		default:
			data = data[n:]
		}
	}
	return nil
}

// deliverSpare delivers a short answer in a prepared file.
func (s *Spool) deliverSpare(name string, a Answer) error {
	select {
	case spare := <-s.spare:
		if err := s.overwrite(spare, a.encode("")); err != nil {
			return err
		}
		return unix.Renameat(s.dir.fd(), spare, s.dir.fd(), name)
	default:
		return fmt.Errorf("%w: %s gets no answer", ErrFull, name)
	}
}

func (s *Spool) overwrite(spare string, data []byte) error {
	fd, err := unix.Openat(s.dir.fd(), spare, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(writeAll(fd, data), unix.Ftruncate(fd, int64(len(data))), unix.Close(fd))
}

// refill makes the missing spare files (see spares). If the file system has no room, the next call of refill tries again.
func (s *Spool) refill() {
	for len(s.spare) < cap(s.spare) {
		s.made++
		name := workName + "/spare" + strconv.Itoa(s.made)
		if s.create(name, make([]byte, spareSize)) != nil {
			return
		}
		s.spare <- name
	}
}
