package selfnames

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Source lists the functions in the source of one version of PostgreSQL.
type Source struct {
	// Version is the version of PostgreSQL, such as "15.18".
	Version string
	Files   []SourceFile
}

// SourceFile is a source file.
type SourceFile struct {
	// Path is relative to the folder src, such as "backend/access/heap/heapam.c".
	Path string
	// Generated is set if another program translates the file to C. Mixed is set if the file has functions that
	// Functions lacks.
	Generated, Mixed bool
	Functions        []SourceFunction
}

// SourceFunction is a function. A function without a name stands for all functions that macros and templates in the
// file make.
type SourceFunction struct {
	Name   string
	Static bool
	// Reports is set if the function's own code reports errors in every build. MayReport is set if it may report
	// errors.
	Reports, MayReport bool
	// Taken is set if the file takes the function's address in every build.
	Taken bool
	// Mentions are the other functions of the file that the function may call or point to. Points are the functions to
	// which it may point. Both are indexes into Functions.
	Mentions, Points []int
}

// ErrTable means that a table is malformed.
var ErrTable = errors.New("malformed table of functions")

// Bounds of a table. PostgreSQL 18 has 900 files and 16,000 functions; its table takes 1 MB before compression.
const (
	maxTable     = 16 << 20
	maxTableName = 255
	maxListed    = 1 << 16
)

const (
	flagStatic = 1 << iota
	flagReports
	flagMayReport
	flagTaken
)

// Pack encodes and compresses the source's functions as a table, for Unpack. The error is ErrTable if a name is too
// long.
func (s *Source) Pack() ([]byte, error) {
	p := packer{}
	p.string(s.Version)
	p.number(len(s.Files))
	for i := range s.Files {
		f := &s.Files[i]
		p.string(f.Path)
		p.number(flags(f.Generated, f.Mixed))
		p.number(len(f.Functions))
		for j := range f.Functions {
			fn := &f.Functions[j]
			p.string(fn.Name)
			p.number(flags(fn.Static, fn.Reports, fn.MayReport, fn.Taken))
			p.list(fn.Mentions)
			p.list(fn.Points)
		}
	}
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(p.p)
	err = errors.Join(p.err, err, w.Close())
	return out.Bytes(), err
}

func flags(set ...bool) (n int) {
	for i, on := range set {
		if on {
			n |= 1 << i
		}
	}
	return n
}

// packer appends the parts of a table.
type packer struct {
	p   []byte
	err error
}

func (p *packer) number(n int) { p.p = binary.AppendUvarint(p.p, uint64(n)) }

func (p *packer) string(s string) {
	if len(s) > maxTableName {
		p.err = fmt.Errorf("%w: a name of %d bytes", ErrTable, len(s))
	}
	p.number(len(s))
	p.p = append(p.p, s...)
}

// list appends numbers in ascending order, each as the distance from the number before.
func (p *packer) list(of []int) {
	of = slices.Clone(of)
	slices.Sort(of)
	of = slices.Compact(of)
	p.number(len(of))
	last := 0
	for _, n := range of {
		p.number(n - last)
		last = n
	}
}

// Unpack reads a table that Pack has made. The error is ErrTable if the bytes are no such table.
func Unpack(table []byte) (*Source, error) {
	var b strings.Builder
	n, err := io.Copy(&b, io.LimitReader(flate.NewReader(bytes.NewReader(table)), maxTable))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTable, err)
	}
	if n == maxTable {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTable, maxTable)
	}
	r := unpacker{p: b.String()}
	s := &Source{Version: r.string()}
	for range r.count() {
		f := SourceFile{Path: r.string()}
		kind := r.number()
		f.Generated, f.Mixed = kind&1 != 0, kind&2 != 0
		n := r.count()
		f.Functions = make([]SourceFunction, 0, n)
		for range n {
			fn := SourceFunction{Name: r.string()}
			kind := r.number()
			fn.Static, fn.Reports, fn.MayReport = kind&flagStatic != 0, kind&flagReports != 0, kind&flagMayReport != 0
			fn.Taken = kind&flagTaken != 0
			fn.Mentions, fn.Points = r.list(n), r.list(n)
			f.Functions = append(f.Functions, fn)
			if r.bad {
				return nil, ErrTable
			}
		}
		s.Files = append(s.Files, f)
	}
	if r.bad || len(r.p) > 0 {
		return nil, ErrTable
	}
	return s, nil
}

// unpacker reads the parts of a table. Its strings share the memory of the table. bad is set after the first invalid
// part.
type unpacker struct {
	p   string
	bad bool
	// lists is the memory from which list takes the lists that it returns.
	lists []int
}

func (r *unpacker) number() (n int) {
	for shift := 0; shift < 28; shift += 7 {
		if len(r.p) == 0 {
			break
		}
		b := r.p[0]
		r.p = r.p[1:]
		n |= int(b&0x7f) << shift
		if b < 0x80 {
			return n
		}
	}
	r.bad = true
	return 0
}

// count reads how many parts follow. As each part takes at least a byte, more parts than bytes are invalid.
func (r *unpacker) count() int {
	n := r.number()
	if n > len(r.p) || n > maxListed {
		r.bad = true
		return 0
	}
	return n
}

func (r *unpacker) string() string {
	n := r.number()
	if n > len(r.p) || n > maxTableName {
		r.bad = true
		return ""
	}
	s := r.p[:n]
	r.p = r.p[n:]
	return s
}

// list reads numbers in ascending order, all below bound.
func (r *unpacker) list(bound int) []int {
	n := r.count()
	if n == 0 {
		return nil
	}
	if n > cap(r.lists)-len(r.lists) {
		const room = 1 << 12
		r.lists = make([]int, 0, max(n, room))
	}
	from, last := len(r.lists), 0
	for range n {
		last += r.number()
		if last >= bound {
			r.bad = true
			return nil
		}
		r.lists = append(r.lists, last)
	}
	return r.lists[from:len(r.lists):len(r.lists)]
}
