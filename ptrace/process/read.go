package process

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// bufferSize is large enough for every file but maps of large processes.
const bufferSize = 64 << 10

var buffers = sync.Pool{New: func() any {
	b := make([]byte, bufferSize)
	return &b
}}

// readFile returns the contents of a small /proc file as a string. It does not use package os, which would try to poll the
// file: /proc files cannot be polled, and the attempt costs as much as reading them.
func readFile(name string) (string, error) { return readBy(name, readSmall) }

// readLarge is readFile for the files that are large for some processes: maps and children.
func readLarge(name string) (string, error) { return readBy(name, readAll) }

// readFileOnce is readFile for a file whose whole content the kernel returns in one read.
func readFileOnce(name string) (string, error) { return readBy(name, readWhole) }

// readBy opens a file and reads it into reusable memory.
func readBy(name string, from func(fd int, p []byte) ([]byte, error)) (string, error) {
	fd, err := open(name)
	if err != nil {
		return "", wrap(name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	b, ok := buffers.Get().(*[]byte)
	if !ok {
		return "", fmt.Errorf("%s: no buffer", name)
	}
	data, err := from(fd, (*b)[:0])
	text := string(data)
	if cap(data) > cap(*b) && cap(data) <= 1<<20 {
		*b = data[:cap(data)]
	}
	buffers.Put(b)
	if err != nil {
		return "", wrap(name, err)
	}
	return text, nil
}

// readWhole reads a file by one call of read(2). The file must fit into the capacity of p.
func readWhole(fd int, p []byte) ([]byte, error) {
	for {
		n, err := unix.Read(fd, p[:cap(p)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return p, err
		case n >= cap(p):
			return p, fmt.Errorf("%w: longer than %d bytes", ErrFormat, n-1)
		default:
			return p[:max(n, 0)], nil
		}
	}
}

func open(name string) (int, error) {
	for {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// readAll appends the whole file to p, which grows as needed up to maxFile.
func readAll(fd int, p []byte) ([]byte, error) { return readUpTo(fd, p, maxFile) }

// readSmall is readAll up to maxSmall.
func readSmall(fd int, p []byte) ([]byte, error) { return readUpTo(fd, p, maxSmall) }

func readUpTo(fd int, p []byte, most int) ([]byte, error) {
	for {
		if len(p) > most {
			return p, fmt.Errorf("%w: larger than %d bytes", ErrFormat, most)
		}
		if len(p) == cap(p) {
			p = append(p, make([]byte, cap(p)+1)...)[:len(p)]
		}
		n, err := unix.Read(fd, p[len(p):cap(p)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return p, err
		case n <= 0:
			return p, nil
		default:
			p = p[:len(p)+n]
		}
	}
}
