# A streaming standby: its own worker, its recovery processes during replay and while replay is paused, a copy of the
# primary's pid file, a lost connection to the primary, promotion, and the former primary as a standby.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker qw($FRAME call proc_status wait_until backend_pid);

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->start;
$primary->safe_psql(
	'postgres', q{
CREATE EXTENSION pg_stat_backtrace;
CREATE TABLE t (a int);
CREATE ROLE plain LOGIN;
GRANT EXECUTE ON FUNCTION pg_get_backtrace(int), pg_log_backtrace(int) TO plain});

# The backup is a copy of the stopped server's files, so it needs no pg_basebackup of that version. The worker runs
# meanwhile, so its pid file is among the files.
my $worker = Worker->start($primary);
$primary->stop;
$worker->cold_backup($primary, 'cold');
$primary->start;
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'cold', has_streaming => 1);
ok(-e $standby->data_dir . '/pg_stat_backtrace.pid', "the primary's pid file has come with the backup");
$standby->start;
$primary->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'")
  or die 'no standby';

# pid_of($node, $type) waits for a process of that kind and returns its pid.
sub pid_of
{
	my ($node, $type) = @_;
	my $pid;
	wait_until("the $type",
		sub { $pid = $node->safe_psql('postgres', "SELECT min(pid) FROM pg_stat_activity WHERE backend_type = '$type'") });
	return $pid;
}

# stack_ok($node, $pid, $function, $what): the process is in that function, and unchanged after the capture.
sub stack_ok
{
	my ($node, $pid, $function, $what) = @_;
	my ($out, undef, undef, $stderr) = call($node, "SELECT pg_get_backtrace($pid)");
	like($out, qr/\bin\s+$function\+0x/, $what) or diag($stderr);
	my %status = proc_status($pid);
	is($status{TracerPid}, 0, "$what: not traced afterwards");
	return;
}

# The primary's worker does not serve the standby.
my $reader = $standby->background_psql('postgres', extra_params => [ '-U', 'plain' ]);
my $read   = backend_pid($reader);
my (undef, $level, $state, $stderr) = call($standby, "SELECT pg_get_backtrace($read)");
is("$level $state", 'ERROR 55000', "a standby with a copy of its primary's pid file has no worker");
like($stderr, qr/worker is not running/, 'and says so');
my $own = Worker->start($standby);

for my $mode ('', 'BEGIN;', 'BEGIN ISOLATION LEVEL REPEATABLE READ;', 'BEGIN READ ONLY;')
{
	my ($out) = call($standby, "$mode SELECT pg_get_backtrace($read)");
	like($out, $FRAME, "on a standby: $mode a backend's stack");
}
my ($out) = call($standby, "SELECT pg_get_backtrace($read)", role => 'plain');
like($out, $FRAME, 'on a standby: for its own role');
(undef, $level, $state) = call($standby, 'SELECT pg_get_backtrace(' . pid_of($standby, 'startup') . ')', role => 'plain');
is("$level $state", 'ERROR 42501', 'on a standby: not for others');
is($standby->safe_psql('postgres', "SELECT pg_log_backtrace($read)"), 't', 'on a standby: to the log');

# The recovery processes during replay, while replay is paused with WAL to replay, and after it is resumed.
stack_ok($standby, pid_of($standby, 'startup'), 'StartupProcessMain', 'the startup process');
stack_ok($standby, pid_of($standby, 'walreceiver'), 'WalReceiverMain', 'the walreceiver');
stack_ok($primary, pid_of($primary, 'walsender'), 'exec_replication_command', 'the walsender');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$primary->safe_psql('postgres', 'INSERT INTO t SELECT generate_series(1, 10000)');
wait_until('replay to pause', sub { $standby->safe_psql('postgres', 'SELECT pg_get_wal_replay_pause_state()') eq 'paused' });
stack_ok($standby, pid_of($standby, 'startup'), 'StartupProcessMain', 'the startup process, replay paused');
stack_ok($standby, pid_of($standby, 'walreceiver'), 'WalReceiverMain', 'the walreceiver, replay paused');
is($standby->safe_psql('postgres', 'SELECT count(*) FROM t'), '0', 'replay is paused indeed');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', 'SELECT count(*) FROM t'), '10000', 'and goes on');

# Replay continues during the captures.
my $startup = pid_of($standby, 'startup');
my $captures = IPC::Run::start(
	[ 'psql', '-XAtq', '-d', $standby->connstr('postgres'), '-c',
		"SELECT count(pg_get_backtrace($startup)) FROM generate_series(1, 300)" ],
	'>', \my $counted, '2>', \my $errors);
$primary->safe_psql('postgres', "INSERT INTO t SELECT generate_series(1, 1000)") for 1 .. 10;
$captures->finish;
is($counted, "300\n", '300 captures of the startup process while it replays') or diag($errors);
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', 'SELECT count(*) FROM t'), '20000', 'all is replayed');

# The primary crashes, and the standby, which has lost its walreceiver, is promoted. Its worker continues.
my $receiver = pid_of($standby, 'walreceiver');
$primary->stop('immediate');
wait_until('the walreceiver to end', sub { !-e "/proc/$receiver" });
($out, $level) = call($standby, "SELECT pg_get_backtrace($receiver) IS NULL");
is("$out $level", 't WARNING', 'the walreceiver that has ended');
stack_ok($standby, pid_of($standby, 'startup'), 'StartupProcessMain', 'the startup process without a primary');
$standby->promote;
wait_until('the startup process to end', sub { !-e "/proc/$startup" });
($out, $level) = call($standby, "SELECT pg_get_backtrace($startup) IS NULL");
is("$out $level", 't WARNING', 'after promotion there is no startup process');
$standby->safe_psql('postgres', 'INSERT INTO t VALUES (0)');
($out) = call($standby, "SELECT pg_get_backtrace($read)", role => 'plain');
like($out, $FRAME, 'after promotion the same worker answers');
ok($own->running, 'the worker has outlived the promotion');

# The former primary's worker has waited. When its server starts again, the worker serves it.
$primary->start;
my $session = $primary->background_psql('postgres', extra_params => [ '-U', 'plain' ]);
my $pid     = backend_pid($session);
wait_until('the worker to have a session again',
	sub { (call($primary, "SELECT pg_get_backtrace($pid)", role => 'plain'))[0] =~ $FRAME });
pass("the former primary's worker serves it again");

$_->quit for $reader, $session;
is($_->stop, 0, 'SIGTERM ends the worker with status 0') for $worker, $own;
$_->stop for $standby, $primary;
done_testing();
