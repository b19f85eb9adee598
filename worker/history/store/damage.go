package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
	"unsafe"
)

// A journal or a Parquet file may be damaged, or another user may have forged it. This file has the bounds of what a reader
// accepts, and the search for the next good record behind damaged bytes.
const (
	maxFrames   = 1 << 20              // sweeps of a journal: an hour has 36,000 at ten a second
	maxDamage   = 100                  // listed places of a file
	maxNested   = 16                   // open brackets in the JSON text of a sweep
	sweepMemory = 128 << 20            // bytes of the rows, stacks and blockers of a sweep
	maxDuration = 366 * 24 * time.Hour // of the period or delay of a sweep
)

var (
	// errRefused means that a record has a right checksum, but no data that a recorder writes.
	errRefused = errors.New("a record cannot be used")
	// errTooLarge is an errRefused: the record would take too much memory.
	errTooLarge = fmt.Errorf("%w: it has more elements than a sweep can have", errRefused)
)

// damaged adds a place to f.damage.
func (f *frames) damaged(at int64, what string) {
	if len(f.damage) < maxDamage {
		f.damage = append(f.damage, f.damageAt(at, what))
	}
}

func (f *frames) damageAt(at int64, what string) error {
	return fmt.Errorf("%s: damaged at byte %d: %s", f.name, at, what)
}

// zstdMagic are the first bytes of compressed data. In a record they follow the head and the time.
const zstdMagic = "\x28\xb5\x2f\xfd"

// resync moves f.at to the next good record behind it, and adds the bytes between to f.damage. It returns io.EOF if there is none:
// then f.at does not change, and f.tail is set unless the last record is only torn.
func (f *frames) resync() error {
	from := f.at
	found, err := f.search()
	if err != nil {
		f.at = from
		return err
	}
	if found {
		f.damaged(from, fmt.Sprintf("%d bytes are skipped", f.at-from))
		return nil
	}
	f.at, f.tail = from, nil
	torn, err := f.torn()
	if err != nil {
		return err
	}
	if torn && !f.exhausted() {
		return io.EOF
	}
	f.tail = f.damageAt(from, fmt.Sprintf("%d bytes are skipped", f.size-from))
	return io.EOF
}

// search moves f.at to the next good record behind it. It returns false if there is none. Its cost is proportional to the size of the
// file: it computes a checksum only where a record may begin, and ends when wrong checksums have taken several times the file's size.
func (f *frames) search() (bool, error) {
	const (
		step  = 1 << 20
		ahead = frameHead + frameTime // bytes of a record before zstdMagic
	)
	buf := make([]byte, min(step, max(0, f.size-f.at)))
	for begin := f.at + 1 + ahead; begin+int64(len(zstdMagic)) <= f.size; begin += int64(max(1, len(buf)-len(zstdMagic)+1)) {
		buf = buf[:min(int64(len(buf)), f.size-begin)]
		if _, err := f.r.ReadAt(buf, begin); err != nil {
			return false, fmt.Errorf("%w: journal: %w", ErrFile, err)
		}
		for at := 0; ; at++ {
			n := bytes.Index(buf[at:], []byte(zstdMagic))
			if n < 0 {
				break
			}
			if f.exhausted() {
				return false, nil
			}
			at += n
			f.at = begin + int64(at) - ahead
			start := f.at
			switch _, err := f.read(); {
			case err == nil:
				f.at = start
				return true, nil
			case !errors.Is(err, errFrame):
				return false, err
			}
		}
	}
	return false, nil
}

// torn reports whether the bytes from f.at on are the begin of a record whose writer was interrupted, or is still writing.
func (f *frames) torn() (bool, error) {
	rest := f.size - f.at
	if rest < frameHead+frameTime {
		return true, nil
	}
	var head [frameHead]byte
	if _, err := f.r.ReadAt(head[:], f.at); err != nil {
		return false, fmt.Errorf("%w: journal: %w", ErrFile, err)
	}
	length := int64(binary.LittleEndian.Uint32(head[:]))
	return length >= frameTime && length <= frameLimit && frameHead+length > rest, nil
}

// exhausted reports whether the search for good records has taken too long.
func (f *frames) exhausted() bool {
	const times, least = 4, 1 << 20
	return f.checked > times*f.size+least
}

// withinMemory reports whether the JSON text of a sweep can be decoded within sweepMemory. Some bytes of text can take hundreds of
// bytes of memory, so the length of the text is no bound. withinMemory does not verify the text.
func withinMemory(text []byte) bool {
	var open [maxNested]byte // the open brackets
	depth, used := 0, uintptr(0)
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			continue
		case '[', '{':
			if depth == maxNested {
				return false
			}
			open[depth] = c
			depth++
			if c == '{' {
				continue
			}
		case ']', '}':
			if depth == 0 {
				return false
			}
			depth--
			continue
		case ',':
			if depth == 0 || open[depth-1] != '[' {
				continue
			}
		default:
			continue
		}
		// an element of an array begins
		const ofSweep = 2 // depth of the arrays of rows and of stacks
		if depth <= ofSweep {
			used += unsafe.Sizeof(Row{})
		} else {
			used += unsafe.Sizeof(Blocker{})
		}
		if used > sweepMemory {
			return false
		}
	}
	return true
}

// possible reports whether a time, in microseconds since 1970, can be printed and is not before 1970. Zero is an unknown time.
func possible(at int64) bool { return at >= 0 && at < forever.UnixMicro() }

// possible reports whether the row's times can be real.
func (r *Row) possible() bool {
	return possible(r.Start) && possible(r.XactStart) && possible(r.QueryStart) && possible(r.StateStart) && possible(r.WaitStart)
}

// possible reports whether the numbers of a sweep can be real.
func (s SweepInfo) possible() bool {
	most := maxDuration.Seconds()
	return possible(s.Time) && s.Period >= 0 && s.Period <= most && s.Delay >= 0 && s.Delay <= most && s.Lost >= 0 && s.Rows >= 0
}

// possible reports whether the numbers of a Sum can be real.
func (s *Sum) possible() bool {
	return possible(s.Time) && s.Samples >= 0 && s.TopCount >= 0 && s.Weight >= 0 && !math.IsInf(s.Weight, 0)
}
