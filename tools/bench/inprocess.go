package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

const inProcessStatement = "SELECT bench_backtrace($1)"

// headers finds the header files of the server's major version: the server's own, or an installed server's.
func headers(ctx context.Context, s *server) (string, error) {
	major, _, _ := strings.Cut(s.Version, ".")
	for _, config := range []string{
		filepath.Join(s.binDir, "pg_config"), os.Getenv("PG_CONFIG"), "/usr/lib/postgresql/" + major + "/bin/pg_config",
	} {
		version, err := output(command(ctx, config, "--version"))
		if err != nil || !strings.HasPrefix(string(version), "PostgreSQL "+major+".") {
			continue
		}
		out, err := output(command(ctx, config, "--includedir-server"))
		include := strings.TrimSpace(string(out))
		if _, missing := os.Stat(filepath.Join(include, "postgres.h")); err == nil && missing == nil {
			return include, nil
		}
	}
	return "", fmt.Errorf("no header files of PostgreSQL %s (postgresql-server-dev-%s)", major, major)
}

// inProcess compiles inprocess.c for the server and creates its function. The error names missing prerequisites.
func inProcess(ctx context.Context, o options, s *server, conn *pgx.Conn) error {
	include, err := headers(ctx, s)
	if err != nil {
		return err
	}
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	library := filepath.Join(s.root, "inprocess.so") // where the server's user may read it
	if _, err := output(command(ctx, compiler, "-O2", "-Wall", "-Wextra", "-shared", "-fPIC",
		"-I"+include, "-o", library, filepath.Join(o.Source, "inprocess.c"),
		"-lunwind-ptrace", "-lunwind-generic", "-lunwind")); err != nil {
		return fmt.Errorf("a C function in the server: %w", err)
	}
	_, err = conn.Exec(ctx, "CREATE FUNCTION bench_backtrace(pid int) RETURNS text LANGUAGE C VOLATILE STRICT AS '"+
		library+"'")
	if err != nil {
		return fmt.Errorf("a C function in the server: %w", err)
	}
	return nil
}
