# The queue and the journal with the real worker: requests without a waiting caller, on a primary and its standby.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker qw($FRAME call backend_pid wait_until);

my $node = PostgreSQL::Test::Cluster->new('primary');
$node->init(allows_streaming => 1);
$node->append_conf('postgresql.conf', 'max_connections = 50');
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION pg_stat_backtrace;
CREATE ROLE alice LOGIN;
CREATE ROLE bob LOGIN;
GRANT EXECUTE ON FUNCTION pg_request_backtrace(int, boolean), pg_get_backtrace(int) TO alice, bob;
CREATE DATABASE second;
});
my $where  = $node->connstr('postgres') . ' user=' . Worker::superuser();
my $target = $node->background_psql('postgres', extra_params => [ '-U', 'alice' ]);
my $pid    = backend_pid($target);

# ask($sql, role, db) returns the id of a request.
sub ask
{
	my ($sql, %opts) = @_;
	my ($out, $level, $state, $stderr) = call($opts{node} // $node, $sql, %opts);
	die "$sql: $stderr" unless $out =~ /^\d+$/;
	return $out;
}

# result($id) returns state, SQLSTATE and text of a request that has finished.
sub result
{
	my ($id, %opts) = @_;
	my ($state, $out);
	wait_until(
		"request $id",
		sub {
			($out) = call($opts{node} // $node,
				"SELECT state, sqlstate, coalesce(backtrace, message) FROM pg_backtrace_result($id)", %opts);
			($state) = $out =~ /^(\w+)/;
			return ($state // 'queued') ne 'queued';
		});
	return ($state, $out);
}

# Before there is a worker.
my ($out, $level, undef, $stderr) = call($node, "SELECT pg_request_backtrace($pid)", role => 'alice');
like($stderr, qr/NOTICE:.*worker is not running; the request waits for it/, 'a request without a worker waits');
my $early = $out;
my $worker = Worker->start($node, args => [ $where, '--keep-rows', 200 ]);
my ($state, $text) = result($early, role => 'alice');
is($state, 'done', 'and is served when there is one');
like($text, $FRAME, 'with a stack');

# A request for the log.
my $offset = -s $node->logfile;
($state) = result(ask("SELECT pg_request_backtrace($pid, log => true)"));
is($state, 'done', 'to the server log');
like(slurp_file($node->logfile, $offset), qr/LOG:\s+backtrace of PID $pid\n.*DETAIL:\s+#0 /, 'it is there');

# The extension is created in another database while the worker runs, and dropped.
$node->safe_psql('second', 'CREATE EXTENSION pg_stat_backtrace');
($state) = result(ask("SELECT pg_request_backtrace($pid)", db => 'second'), db => 'second');
is($state, 'done', 'a database that got the extension later');
# The server waits for 5 s until the worker has left, which a busy machine may need.
my $dropped;
for (1 .. 3)
{
	$dropped = (call($node, 'DROP DATABASE second'))[1];
	last if $dropped eq '';
}
is($dropped, '', 'a database can be dropped: the worker leaves it');

# A standby has no queue and reports that. After its promotion its queue is served. The standby is made from the files
# of the stopped server, so the test does not need pg_basebackup of the server's version.
$target->quit;
$node->stop;
$worker->cold_backup($node, 'cold');
$node->start;
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'cold', has_streaming => 1);
$standby->start;
my $other = Worker->start($standby);
(undef, $level, $state, $stderr) = call($standby, "SELECT pg_request_backtrace($pid)");
is("$level $state", 'ERROR 25006', 'no request on a standby');
like($stderr, qr/HINT:.*pg_get_backtrace/, 'and what to use instead');
$standby->promote;
my $session = $standby->background_psql('postgres');
my $its_pid = backend_pid($session);
($state) = result(ask("SELECT pg_request_backtrace($its_pid)", node => $standby), node => $standby);
is($state, 'done', 'after the promotion the worker serves the queue');
unlike($other->log, qr/"level":"(warn|error)"/, 'and has complained of nothing');
$session->quit;
$other->stop;
$standby->stop;

is($worker->stop, 0, 'the worker ends in order');
$node->stop;
done_testing();
