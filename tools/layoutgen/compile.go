package main

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// section holds the constants in the object file.
const section = ".layout"

// headers are included if the version has them.
const headers = `postgres.h miscadmin.h nodes/execnodes.h nodes/plannodes.h nodes/parsenodes.h nodes/tidbitmap.h
executor/execdesc.h executor/execParallel.h executor/hashjoin.h executor/instrument.h executor/instrument_node.h
access/relscan.h access/heapam.h access/parallel.h utils/portal.h utils/rel.h utils/tuplesort.h
utils/backend_status.h storage/proc.h storage/lock.h storage/pg_shmem.h storage/shmem.h storage/shmem_internal.h
catalog/pg_class.h commands/copyfrom_internal.h libpq/libpq-be.h postmaster/bgworker.h nodes/memnodes.h utils/hsearch.h
plpgsql.h`

// stubs stand for headers of other libraries, which need not be installed. The structures have pointers to their types
// only.
//
//nolint:gochecknoglobals // a table
var stubs = map[string]string{
	"gssapi.h": gssapi, "gssapi/gssapi.h": gssapi, "gssapi_ext.h": "", "gssapi/gssapi_ext.h": "",
	"openssl/ssl.h": openssl, "openssl/err.h": openssl, "sys/sdt.h": sdt(), "Python.h": python,
}

const (
	gssapi = `#pragma once
typedef struct { unsigned long length; void *value; } gss_buffer_desc, *gss_buffer_t;
typedef struct gss_cred *gss_cred_id_t;
typedef struct gss_context *gss_ctx_id_t;
typedef struct gss_name *gss_name_t;
typedef struct { unsigned length; void *elements; } gss_OID_desc, *gss_OID;
typedef unsigned int OM_uint32;
`
	openssl = `#pragma once
typedef struct ssl_st SSL;
typedef struct x509_st X509;
typedef struct ssl_ctx_st SSL_CTX;
`
	python = `#pragma once
typedef struct _object PyObject;
typedef long Py_ssize_t;
`
	// declarations are functions that an older C library lacks.
	declarations = `#include <stddef.h>
extern size_t strlcpy(char *, const char *, size_t);
extern size_t strlcat(char *, const char *, size_t);
`
)

// sdt returns macros of static probes that do nothing.
func sdt() string {
	var text strings.Builder
	for n := range 13 {
		name := "STAP_PROBE"
		if n > 0 {
			name += strconv.Itoa(n)
		}
		fmt.Fprintf(&text, "#define %s(...) do {} while (0)\n#define %s(...) do {} while (0)\n",
			name, strings.Replace(name, "STAP", "DTRACE", 1))
	}
	return text.String()
}

// An entry is a constant: its name in the result, and the expression of C that has its value.
type entry struct{ name, expression string }

// compiler evaluates entries for one version.
type compiler struct {
	program  string
	includes []string
}

var errorLine = regexp.MustCompile(`(?m)^entries:(\d+):\d+: error: `) //nolint:gochecknoglobals // a pattern

// evaluate returns the values of the entries that compile after a prologue.
func (c *compiler) evaluate(prologue string, entries []entry) (map[string]int64, error) {
	dir, err := os.MkdirTemp("", "layoutgen")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for name, text := range stubs {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	object := filepath.Join(dir, "layout.o")
	for len(entries) > 0 {
		err := c.compile(prologue, entries, dir, object)
		if err == nil {
			return read(object, entries)
		}
		var failed *compileError
		if !errors.As(err, &failed) {
			return nil, err
		}
		kept := entries[:0:0]
		for i, e := range entries {
			if !failed.lines[i+1] {
				kept = append(kept, e)
			}
		}
		if len(kept) == len(entries) {
			return nil, err
		}
		entries = kept
	}
	return nil, nil //nolint:nilnil // no entry compiles
}

// compileError has the numbers of the entries that do not compile.
type compileError struct {
	lines  map[int]bool
	output string
}

func (e *compileError) Error() string { return "the compiler failed: " + e.output }

func (c *compiler) compile(prologue string, entries []entry, dir, object string) error {
	var text strings.Builder
	text.WriteString(declarations + prologue + "\n#line 1 \"entries\"\n")
	for i, e := range entries {
		fmt.Fprintf(&text, "__attribute__((section(%q), used)) const long long layout_entry_%d = (%s);\n", //nolint:dupword // a type of C
			section, i, e.expression)
	}
	source := filepath.Join(dir, "layout.c")
	if err := os.WriteFile(source, []byte(text.String()), 0o600); err != nil {
		return err
	}
	args := []string{"-w", "-O0", "-fmax-errors=0", "-fno-toplevel-reorder", "-c", "-o", object, source}
	for _, include := range c.includes {
		args = append(args, "-I"+include)
	}
	args = append(args, "-I"+dir)
	output, err := exec.Command(c.program, args...).CombinedOutput()
	if err == nil {
		return nil
	}
	failed := &compileError{lines: make(map[int]bool), output: string(output[:min(len(output), 2000)])}
	for _, m := range errorLine.FindAllSubmatch(output, -1) {
		n, _ := strconv.Atoi(string(m[1]))
		failed.lines[n] = true
	}
	return failed
}

// read returns the constants of an object file by the names of their symbols.
func read(object string, entries []entry) (map[string]int64, error) {
	f, err := elf.Open(object)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := f.Section(section)
	if s == nil {
		return nil, fmt.Errorf("%s has no section %s", object, section)
	}
	data, err := s.Data()
	if err != nil {
		return nil, err
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	values := make(map[string]int64)
	for _, symbol := range symbols {
		number, ok := strings.CutPrefix(symbol.Name, "layout_entry_")
		if !ok {
			continue
		}
		i, err := strconv.Atoi(number)
		if err != nil || i >= len(entries) || symbol.Value+8 > uint64(len(data)) {
			return nil, fmt.Errorf("%s has the symbol %s", object, symbol.Name)
		}
		values[entries[i].name] = int64(binary.NativeEndian.Uint64(data[symbol.Value:]))
	}
	return values, nil
}

// private returns the prologue that includes the files of a source tree, separated by spaces. It returns false if the tree
// lacks one of them. A header needs postgres.h before it.
func private(tree, files string) (prologue string, ok bool) {
	var text strings.Builder
	for i, file := range strings.Fields(files) {
		path := filepath.Join(tree, file)
		if _, err := os.Stat(path); tree == "" || err != nil {
			return "", false
		}
		if i == 0 && strings.HasSuffix(file, ".h") {
			text.WriteString("#include \"postgres.h\"\n")
		}
		fmt.Fprintf(&text, "#include %q\n", path)
	}
	return text.String(), true
}

// public returns the prologue that includes all headers that the version has.
func public() string {
	var text strings.Builder
	for header := range strings.FieldsSeq(headers) {
		fmt.Fprintf(&text, "#if __has_include(%q)\n#include %q\n#endif\n", header, header)
	}
	return text.String()
}
