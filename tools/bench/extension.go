package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"
)

// installExtension copies the extension's files to the server's folders, if they are not there already. The returned
// function removes the copied files.
func installExtension(ctx context.Context, conn *pgx.Conn) (remove func() error, err error) {
	var share string
	if err := conn.QueryRow(ctx, "SELECT setting FROM pg_config WHERE name = 'SHAREDIR'").Scan(&share); err != nil {
		return nil, fmt.Errorf("where the server looks for extensions: %w", err)
	}
	scripts, _ := filepath.Glob("sql/pg_stat_backtrace--*.sql")
	if len(scripts) == 0 {
		return nil, errors.New("no sql/pg_stat_backtrace--*.sql here")
	}
	var made []string
	remove = func() error {
		var failed error
		for _, file := range made {
			failed = errors.Join(failed, os.Remove(file))
		}
		return failed
	}
	for _, source := range append(scripts, "pg_stat_backtrace.control") {
		file := filepath.Join(share, "extension", filepath.Base(source))
		fresh, err := place(source, file)
		if fresh {
			made = append(made, file)
		}
		if err != nil {
			return nil, errors.Join(err, remove())
		}
	}
	return remove, nil
}

// place copies source to file, and reports whether file is new. A different existing file is an error. It belongs to
// an installed extension that must not be replaced, and its figures would not be the figures of this source.
func place(source, file string) (fresh bool, err error) {
	want, err := os.ReadFile(source)
	if err != nil {
		return false, fmt.Errorf("the extension's source: %w", err)
	}
	switch have, err := os.ReadFile(file); {
	case err == nil && bytes.Equal(have, want):
		return false, nil
	case err == nil:
		return false, fmt.Errorf("%s is of another version; make install, or make uninstall, first", file)
	case !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("installed extension: %w", err)
	}
	if err := os.WriteFile(file, want, 0o644); err != nil {
		return false, fmt.Errorf("installing the extension: %w", err)
	}
	return true, nil
}
