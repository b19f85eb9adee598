package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are the compiled C programs, by name; a name is missing where the machine lacks a library for it.
type programs struct {
	path   map[string]string
	absent map[string]string // why
}

// sources are the linker options of each C program; the name of its source is the program's name with ".c".
var sources = []struct {
	name     string
	flags    []string
	optional bool // depends on a library that may be missing
}{
	{name: "floor"},
	{name: "spin"},
	{name: "ptracetime", flags: []string{"-shared", "-fPIC", "-ldl"}},
	{name: "libunwind", flags: []string{"-lunwind-ptrace", "-lunwind-generic", "-lunwind"}, optional: true},
}

func compile(ctx context.Context, source, out string) (programs, error) {
	p := programs{path: map[string]string{}, absent: map[string]string{}}
	out, err := filepath.Abs(out)
	if err != nil {
		return p, fmt.Errorf("output directory: %w", err)
	}
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	for _, s := range sources {
		binary := filepath.Join(out, s.name)
		arguments := []string{"-O2", "-Wall", "-Wextra", "-o", binary, filepath.Join(source, s.name+".c")}
		_, err := output(command(ctx, compiler, append(arguments, s.flags...)...))
		switch {
		case err == nil:
			p.path[s.name] = binary
		case s.optional:
			p.absent[s.name] = "does not compile here; is its development package installed?"
		default:
			return p, fmt.Errorf("compiling %s.c: %w", s.name, err)
		}
	}
	return p, nil
}

// command is a program that ends with ctx. It gets the locale C: its output is read by a program.
func command(ctx context.Context, name string, arguments ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, arguments...)
	c.Env = append(os.Environ(), "LC_ALL=C")
	return c
}

// output runs c and returns its standard output. An error contains the end of its standard error.
func output(c *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		const most = 2000
		said := strings.TrimSpace(stderr.String())
		return stdout.Bytes(), fmt.Errorf("%s: %w: %s", filepath.Base(c.Path), err, said[max(0, len(said)-most):])
	}
	return stdout.Bytes(), nil
}

// exited reports whether err only means that a program ended with the given exit status.
func exited(err error, status int) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == status
}
