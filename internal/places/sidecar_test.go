package places

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// sidecar runs the program in a separate root directory. It has the system's libraries, the program, a /proc, and the
// server's volume at another path. The program runs as the server's user, without capabilities and without a way to
// gain one.
const sidecar = `mount -t tmpfs none "$ROOM"; chmod 755 "$ROOM"; cd "$ROOM"
mkdir proc volume old etc tmp; chmod 1777 tmp; cp /etc/passwd /etc/group etc
for d in usr bin lib lib64; do [ -e /$d ] && { mkdir $d; mount --rbind /$d $d; }; done
cp "$PROGRAM" worker; mount --bind "$FILES" volume; mount -t proc none proc
pivot_root . old; umount -l old; rmdir old
exec setpriv --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all --reuid=$WHO --regid=$GROUP \
	--clear-groups -- /worker worker -D /volume/data "$CONNECTION"`

// A worker in another container of a pod, which shares the process namespace and the data volume with the server and
// nothing else, needs no privilege.
func TestSidecar(t *testing.T) {
	each(t, func(t *testing.T, binDir string) {
		s := startElsewhere(t, binDir, pivot)
		s.Exec(t, "CREATE EXTENSION pg_stat_backtrace; CREATE ROLE plain LOGIN; "+
			"GRANT EXECUTE ON FUNCTION pg_get_backtrace TO plain")
		uid, gid := s.OSUser()
		command := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-euc", sidecar)
		command.Env = []string{
			"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "PROGRAM=" + program, "FILES=" + filepath.Dir(s.DataDir),
			"ROOM=" + openDir(t, "sidecar"), fmt.Sprintf("WHO=%d", uid), fmt.Sprintf("GROUP=%d", gid),
			fmt.Sprintf("CONNECTION=host=/volume/socket port=%d user=%s dbname=postgres sslmode=disable", s.Port, s.User),
		}
		serveBy(t, command)
		s.answers(t)
	})
}
