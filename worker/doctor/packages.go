package doctor

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"time"

	"pg_stat_backtrace/worker/host/rootfs"
)

// FindPackages sets the package of each image and of its debug file. It uses dpkg's file lists or rpm. On a relative
// of RHEL without rpm, it uses the usual paths of PostgreSQL's programs.
func FindPackages(ctx context.Context, images []SymbolImage) {
	byRoot := make(map[string][]*SymbolImage)
	for i := range images {
		if m := &images[i]; !m.virtual() {
			byRoot[m.root] = append(byRoot[m.root], m)
		}
	}
	for root, list := range byRoot {
		s := systemAt(root)
		s.dpkg(ctx, list)
		s.rpm(ctx, list)
	}
}

const (
	dpkgInfo = "var/lib/dpkg/info"
	// maxListLine bounds a line of a file list. Reading a list ends at a longer line.
	maxListLine = 64 << 10
	// maxLists bounds the number of file lists, and maxListed the bytes of all lists. The lists of a container are not
	// trusted.
	maxLists  = 100_000
	maxListed = 256 << 20
)

// packageName matches a valid package name. The names in a container are not trusted, and a name becomes part of a
// command that a person may run.
var packageName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9+._-]*$`)

// dpkg searches the file lists of the installed packages for the images, as dpkg -S does.
func (s *system) dpkg(ctx context.Context, images []*SymbolImage) {
	wanted := make(map[string][]*SymbolImage)
	for _, m := range images {
		for _, p := range aliases(m.Path) {
			wanted[p] = append(wanted[p], m)
		}
	}
	folder := path.Join(s.root, "/", dpkgInfo)
	names, err := rootfs.ReadNames(folder, maxLists)
	if err != nil {
		return
	}
	left := int64(maxListed)
	for _, name := range names {
		pkg, ok := strings.CutSuffix(name, ".list")
		if !ok {
			continue
		}
		pkg, _, _ = strings.Cut(pkg, ":") // without the suffix for the architecture, as in libc6:amd64
		if !packageName.MatchString(pkg) || ctx.Err() != nil {
			continue
		}
		f, err := rootfs.Open(path.Join(folder, name))
		if err != nil {
			continue
		}
		list := &io.LimitedReader{R: f, N: left}
		eachLine(list, func(file string) {
			for _, m := range wanted[file] {
				m.Package, m.DebugPackage = pkg, dpkgDebug(pkg)
			}
		})
		left = list.N
		_ = f.Close()
	}
}

func eachLine(f io.Reader, use func(string)) {
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxListLine)
	for lines.Scan() {
		use(lines.Text())
	}
}

// aliases returns the paths that a package may have for a file. If /lib is a link to /usr/lib, packages may still
// have the short path.
func aliases(p string) []string {
	if short, ok := strings.CutPrefix(p, "/usr"); ok && strings.HasPrefix(short, "/") {
		return []string{p, short}
	}
	return []string{p}
}

// dpkgDebug returns the name of the debug package of a Debian package. Debhelper makes most debug packages and names
// them PACKAGE-dbgsym. Some source packages have one debug package for all their packages.
func dpkgDebug(pkg string) string {
	switch {
	case pkg == "libc6", pkg == "libc-bin":
		return "libc6-dbg"
	case strings.HasPrefix(pkg, "libkrb5"), strings.HasPrefix(pkg, "libgssapi-krb5"),
		strings.HasPrefix(pkg, "libk5crypto"):
		return "libkrb5-dbg"
	}
	return pkg + dbgsymSuffix
}

// dbgsymSuffix ends the names of debug packages on Debian and Ubuntu, and debuginfoSuffix ends the names on relatives
// of RHEL.
const (
	dbgsymSuffix    = "-dbgsym"
	debuginfoSuffix = "-debuginfo"
)

// rpmTimeout bounds one call of rpm, which waits while its database is locked.
const rpmTimeout = 10 * time.Second

// rpm sets the packages of images on relatives of RHEL. It runs rpm(8) only for this program's root directory, because
// the rpm in another root is another program. Otherwise it uses the paths of PostgreSQL's programs (usualRPM).
func (s *system) rpm(ctx context.Context, images []*SymbolImage) {
	if !s.redHat() {
		return
	}
	program, err := exec.LookPath("rpm")
	for _, m := range images {
		if m.Package != "" {
			continue
		}
		if err == nil && s.root == "" {
			m.Package = askRPM(ctx, program, m.Path)
		} else {
			m.Package = usualRPM(m.Path)
		}
		if m.Package != "" {
			m.DebugPackage = m.Package + debuginfoSuffix
		}
	}
}

// askRPM returns the package of a file, or "" if rpm knows none.
func askRPM(ctx context.Context, program, file string) string {
	ctx, cancel := context.WithTimeout(ctx, rpmTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-qf", "--qf", "%{NAME}\n", "--", file)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(out), "\n")
	if !packageName.MatchString(name) {
		return ""
	}
	return name
}

// usualRPM returns the package of a PostgreSQL file at its usual path, in the distribution's packages (/usr/bin,
// /usr/lib64/pgsql) or in the packages of postgresql.org (/usr/pgsql-15). It returns "" for other paths.
func usualRPM(file string) string {
	const server = "-server"
	if rest, ok := strings.CutPrefix(file, "/usr/pgsql-"); ok {
		version, inside, _ := strings.Cut(rest, "/")
		if inside == "bin/postgres" && version != "" && strings.Trim(version, "0123456789") == "" {
			return "postgresql" + version + server
		}
		return ""
	}
	if file == "/usr/bin/postgres" || file == "/usr/lib64/pgsql/plpgsql.so" {
		return "postgresql" + server
	}
	return ""
}
