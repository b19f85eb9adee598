package process

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// maxSearched limits how much of a maps file FindMapping reads: some 40,000 lines of usual length. The mappings of a
// hostile process can have paths of 4 kB each.
const maxSearched = 4 << 20

// FindMapping returns the first mapping of a process for which match returns true. Unlike Maps it keeps only a piece of the
// maps file in memory, and stops at this mapping. The error is ErrFormat if the file has more than 4 MB, and no such mapping
// in the first 4 MB.
func FindMapping(pid int, match func(*Mapping) bool) (m Mapping, found bool, err error) {
	name := procPath(pid, "maps")
	fd, err := open(name)
	if err != nil {
		return Mapping{}, false, wrap(name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	m, found, err = findMapping(match, maxSearched, func(p []byte) (int, error) { return unix.Read(fd, p) })
	return m, found, wrap(name, err)
}

// findMapping searches the text that read returns piece by piece, up to limit bytes.
func findMapping(match func(*Mapping) bool, limit int, read func([]byte) (int, error)) (Mapping, bool, error) {
	b, ok := buffers.Get().(*[]byte)
	if !ok {
		return Mapping{}, false, errors.New("no buffer")
	}
	defer buffers.Put(b)
	buffer := (*b)[:bufferSize]
	kept := 0 // bytes at the start of buffer: the beginning of a line
	for total := 0; ; {
		n, err := read(buffer[kept:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return Mapping{}, false, err
		case n <= 0 && kept > 0:
			return Mapping{}, false, formatError("mapping", string(buffer[:kept]))
		case n <= 0:
			return Mapping{}, false, nil
		}
		total += n
		text := buffer[:kept+n]
		end := bytes.LastIndexByte(text, '\n') + 1
		if m, found, err := searchLines(string(text[:end]), match); found || err != nil {
			return m, found, err
		}
		kept = copy(buffer, text[end:])
		switch {
		case total >= limit:
			return Mapping{}, false, fmt.Errorf("%w: more than %d bytes without the mapping", ErrFormat, limit)
		case kept == len(buffer):
			return Mapping{}, false, formatError("mapping", string(buffer))
		}
	}
}

// searchLines searches whole lines of a maps file.
func searchLines(text string, match func(*Mapping) bool) (Mapping, bool, error) {
	for p := (mapsParser{text: text}); p.at < len(text); {
		begin := p.at
		var m Mapping
		if p.mapping(&m); p.failed {
			return Mapping{}, false, formatError("mapping", text[begin:])
		}
		if match(&m) {
			return m, true, nil
		}
	}
	return Mapping{}, false, nil
}
