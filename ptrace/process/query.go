package process

import (
	"encoding/hex"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrUnsupported means that the kernel has no query for a single mapping. Linux has it since 6.11.
var ErrUnsupported = errors.New("not supported by this kernel")

// ErrUnmapped means that the process has no mapping at the address.
var ErrUnmapped = errors.New("nothing is mapped there")

// MapsFile is the open maps file of a process, and answers queries about single mappings. A query takes about a microsecond,
// while reading the file takes a microsecond for each mapping of the process. A MapsFile belongs to the program that the
// process ran when the file was opened. After the process has executed another program, all queries return ErrGone. It is
// not safe for concurrent use.
type MapsFile struct {
	name  string
	fd    int
	query mapQuery
	id    [buildIDSize]byte
}

const buildIDSize = 20 // BUILD_ID_SIZE_MAX of include/linux/buildid.h

// mapQuery is struct procmap_query of include/uapi/linux/fs.h.
type mapQuery struct {
	size, flags, address     uint64
	start, end               uint64
	rights, pageSize, offset uint64
	inode                    uint64
	major, minor             uint32
	nameSize, buildIDSize    uint32
	name, buildID            uint64
}

// procmapQuery is PROCMAP_QUERY, _IOWR('f', 17, struct procmap_query).
const procmapQuery = 3<<30 | uint(unsafe.Sizeof(mapQuery{}))<<16 | 'f'<<8 | 17

// OpenMaps opens the maps file of a process for queries. This process needs the same rights as for reading the file.
func OpenMaps(pid int) (*MapsFile, error) {
	name := procPath(pid, "maps")
	fd, err := open(name)
	if err != nil {
		return nil, wrap(name, err)
	}
	return &MapsFile{name: name, fd: fd}, nil
}

// Close closes the file.
func (f *MapsFile) Close() { _ = unix.Close(f.fd) }

// At returns the mapping that contains an address, without its path. The errors, wrapped, are ErrUnmapped, ErrUnsupported and
// ErrGone.
func (f *MapsFile) At(address uint64) (Mapping, error) {
	return f.ask(mapQuery{address: address})
}

// ImageAt is At for a mapping of an ELF file. It also returns the current build-id of the file in hexadecimal, or ""
// if it has none or the kernel cannot read it.
func (f *MapsFile) ImageAt(address uint64) (Mapping, string, error) {
	// The structure contains the address of f.id as a number. This is safe, because f is alive until ask has returned.
	m, err := f.ask(mapQuery{address: address, buildIDSize: buildIDSize, buildID: uint64(uintptr(unsafe.Pointer(&f.id)))})
	if err != nil || f.query.buildIDSize > buildIDSize {
		return m, "", err
	}
	return m, hex.EncodeToString(f.id[:f.query.buildIDSize]), nil
}

func (f *MapsFile) ask(question mapQuery) (Mapping, error) {
	f.query = question
	f.query.size = uint64(unsafe.Sizeof(f.query))
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f.fd), uintptr(procmapQuery),
			uintptr(unsafe.Pointer(&f.query)))
		switch errno {
		case 0:
			q := &f.query
			return Mapping{Start: q.start, End: q.end, Perms: Perms(q.rights) & (Read | Write | Exec | Shared),
				Offset: q.offset, Major: q.major, Minor: q.minor, Inode: q.inode}, nil
		case unix.EINTR:
		case unix.ENOENT:
			return Mapping{}, fmt.Errorf("%s: 0x%x: %w", f.name, question.address, ErrUnmapped)
		case unix.ENOTTY, unix.EINVAL, unix.ENOSYS:
			return Mapping{}, fmt.Errorf("%s: %w: %w", f.name, ErrUnsupported, errno)
		default:
			return Mapping{}, wrap(f.name, errno)
		}
	}
}

// SameMemory reports whether two mappings are the same part of the address space with the same rights. Mappings of
// files must also map the same part of the same file. The name of the file may have changed.
func (m *Mapping) SameMemory(other *Mapping) bool {
	return m.Start == other.Start && m.End == other.End && m.Perms == other.Perms && m.Inode == other.Inode &&
		m.Major == other.Major && m.Minor == other.Minor && (m.Offset == other.Offset || m.Inode == 0)
}
