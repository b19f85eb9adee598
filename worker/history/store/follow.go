package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
	"unsafe"
)

// A Follower reads sweeps soon after a recorder has written them. It reads each byte of the journal once. It must be used by
// one goroutine at a time.
type Follower struct {
	dir    string
	file   *os.File // nil: there is no journal
	frames *frames
	last   time.Time // of the newest sweep that Next has passed to its callback
}

// Follow returns a follower for the sweeps whose time is after the parameter after.
func (r *Reader) Follow(after time.Time) *Follower { return &Follower{dir: r.dir, last: after} }

// Close closes the journal.
func (f *Follower) Close() {
	if f.file != nil {
		f.frames.close()
		_ = f.file.Close()
		f.file = nil
	}
}

// Damage returns the damaged and refused parts of the journal that Next has skipped.
func (f *Follower) Damage() []error {
	switch {
	case f.file == nil:
		return nil
	case f.frames.tail != nil:
		return append(slices.Clone(f.frames.damage), f.frames.tail)
	}
	return slices.Clone(f.frames.damage)
}

// Next calls the callback each for every sweep that was written since the last call, in the order in which they were
// written. It decodes the newest sweeps first. When the time budget is used up, it omits the older sweeps, and returns their
// number (left). If an hour has ended, it reads the journal of the next hour too.
func (f *Follower) Next(budget time.Duration, each func(*Sweep)) (left int, err error) {
	for {
		if f.file == nil {
			if err := f.open(); err != nil || f.file == nil {
				return left, err
			}
		}
		replaced, err := f.replaced()
		if err != nil {
			return left, err
		}
		n, err := f.read(budget, each)
		left += n
		if err != nil {
			f.Close()
			return left, err
		}
		if !replaced {
			return left, nil
		}
		f.Close() // the old journal was read to its end
	}
}

// open opens the journal, if there is one.
func (f *Follower) open() error {
	file, size, err := open(journalPath(f.dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	frames, err := openFrames(file, size)
	if errors.Is(err, errBegun) {
		_ = file.Close()
		return nil
	}
	if err != nil {
		_ = file.Close()
		return fmt.Errorf("follow the journal: %w", err)
	}
	f.file, f.frames = file, frames
	return nil
}

// replaced reports whether the open file is no longer the file at the journal's path, because an hour has ended.
func (f *Follower) replaced() (bool, error) {
	current, err := os.Lstat(journalPath(f.dir))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("follow the journal: %w", err)
	}
	own, err := f.file.Stat()
	if err != nil {
		return false, fmt.Errorf("follow the journal: %w", err)
	}
	return !os.SameFile(current, own), nil
}

// read is Next for the open journal only.
func (f *Follower) read(budget time.Duration, each func(*Sweep)) (left int, err error) {
	st, err := f.file.Stat()
	if err != nil {
		return 0, fmt.Errorf("follow the journal: %w", err)
	}
	f.frames.size = st.Size()
	if f.frames.size < f.frames.at { // continueJournal has cut the file
		return 0, fmt.Errorf("%w: it has become shorter", ErrJournal)
	}
	type place struct {
		at    time.Time
		begin int64
	}
	var places []place
	for {
		at, err := f.frames.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		if at.After(f.last) && !f.frames.sums && len(places) < maxFrames {
			places = append(places, place{at, f.frames.offset()})
		}
	}
	end, tail, began := f.frames.at, f.frames.tail, time.Now()
	var sweeps []*Sweep
	memory := uintptr(0)
	for i, p := range slices.Backward(places) {
		if len(sweeps) > 0 && (time.Since(began) > budget || memory > 2*sweepMemory) {
			left = i + 1
			break
		}
		f.frames.at = p.begin
		if _, err := f.frames.next(); err != nil {
			return 0, err
		}
		s, err := f.frames.sweep(p.at)
		if errors.Is(err, errRefused) {
			f.frames.damaged(p.begin, err.Error())
			continue
		}
		if err != nil {
			return 0, err
		}
		sweeps = append(sweeps, s)
		memory += uintptr(len(s.Rows))*unsafe.Sizeof(Row{}) + uintptr(len(f.frames.text))
	}
	f.frames.at, f.frames.tail = end, tail
	for _, s := range slices.Backward(sweeps) {
		if s.Time.After(f.last) {
			f.last = s.Time
			each(s)
		}
	}
	return left, nil
}
