#!/usr/bin/env bash
# Tests PostgreSQL with musl, Alpine's C library, which has no call frame information and no frame pointers. Every
# process of a busy server is captured at random moments, with and without a stop. Each stack must lead to main. A
# backend's stacks are also compared with its calls at each instruction. Builds that server once (some minutes). Needs
# gcc, make and musl-gcc, Debian's package musl-tools.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bin=$("$TOP/scripts/build-postgresql.sh" musl)
make_workdir
choose_server_user
cp -a "$(dirname "$bin")" "$WORK/pg" # to where the server's user can read it
! is_root || chown -R "$SERVER_USER:" "$WORK/pg"
cd "$TOP"
PGSB_TEST_USER=$SERVER_USER PGSB_MUSL_BINDIR=$WORK/pg/bin PGSB_TEST_BINDIRS=$WORK/pg/bin \
	"$GO" test -count=1 -timeout 10m -v -run '^(TestMusl|TestEveryInstructionOfBackends)$' ./worker/capture
