"""What a loader promises with real servers. TestThePythonClient, in module serve, starts them and runs this."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

import numpy as np
from digests import digest, epoch

import nwt

GIVEN = json.loads(os.environ.get("NWT_TEST", "null"))
if not GIVEN:
    raise unittest.SkipTest("TestThePythonClient, in module serve, starts the servers")


def drawing(**kwargs):
    return nwt.Loader(GIVEN["drawing"], **kwargs)


def script(text, **kwargs):
    return subprocess.Popen([sys.executable, "-c", "import os, signal, sys, time, nwt\n" + text], stdout=subprocess.PIPE, text=True, **kwargs)


class Batches(unittest.TestCase):
    def test_batches_are_the_local_loaders(self):
        for ask in GIVEN["epochs"]:
            with self.subTest(ask["rank"]), drawing(rank=ask["rank"][0], world_size=ask["rank"][1]) as loader:
                self.assertEqual(len(loader), len(ask["digests"]))
                self.assertEqual([digest(batch) for batch in epoch(loader, 2)], ask["digests"])

    def test_a_rest_is_the_local_loaders(self):
        rest = GIVEN["rest"]
        with drawing(rank=1, world_size=2) as loader:
            loader.load_state_dict(rest["state"])
            self.assertEqual([digest(batch) for batch in loader], rest["digests"])

    def test_it_goes_on_where_it_was_with_another_loader(self):
        with drawing() as loader, drawing(prefetch=1) as other:
            whole = [digest(batch) for number in (0, 1) for batch in epoch(loader, number)]
            for n in range(1, len(whole)):
                batches = (batch for number in (0, 1) for batch in epoch(loader, number))
                for _ in range(n):
                    next(batches)
                other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
                rest = [digest(batch) for number in range(loader.state_dict()["epoch"], 2) for batch in epoch(other, number)]
                self.assertEqual(rest, whole[n:])

    def test_each_iteration_is_the_next_epoch_and_set_epoch_chooses(self):
        with drawing() as loader:
            first, second = ([digest(batch) for batch in loader] for _ in range(2))
            self.assertNotEqual(first, second)
            loader.set_epoch(0)
            self.assertEqual([digest(batch) for batch in loader], first)

    def test_a_state_of_another_order_is_refused(self):
        with drawing() as loader:
            loader.load_state_dict({"epoch": 0, "samples": 10, "order": "12345"})
            with self.assertRaisesRegex(nwt.Error, "state: it was saved with another number of samples"):
                next(iter(loader))

    def test_arrays_are_typed_writable_and_not_copied(self):
        with drawing() as loader:
            batch = next(epoch(loader, 0))
        self.assertEqual([a.dtype for a in batch.values()], [np.float32, np.uint8, np.int64, np.bool_, np.int32, np.int32, np.int32])
        self.assertEqual(batch["map"].shape, (10, 4, 5, 3))
        for array in batch.values():
            self.assertFalse(array.flags.owndata)
            array[:] = 1

    def test_several_threads_may_take_from_one_iteration(self):
        with drawing() as loader:
            batches, got = iter(loader), []
            threads = [threading.Thread(target=lambda: got.extend(digest(batch) for batch in batches)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(sorted(got), sorted(digest(batch) for batch in epoch(loader, 0)))

    def test_batches_may_be_kept(self):
        with drawing() as loader:
            kept = list(epoch(loader, 2))
            self.assertEqual([digest(batch) for batch in kept], [digest(batch) for batch in epoch(loader, 2)])


class BatchesOfSharedMemory(Batches):
    def setUp(self):
        patch = unittest.mock.patch.dict(GIVEN, drawing=[GIVEN["shared"]])
        patch.start()
        self.addCleanup(patch.stop)

    def test_slots_are_used_again_once_nobody_has_their_arrays(self):
        with drawing(prefetch=2) as loader:
            where = {batch["where"].__array_interface__["data"][0] for number in range(5) for batch in epoch(loader, number)}
            self.assertLessEqual(len(where), 2 * 6)  # what is asked for ahead of epoch 1 is dropped, since epoch 0 is chosen first
            one = next(epoch(loader, 0))["where"]
        self.assertEqual(one.shape, (10, 3))

    def test_without_a_server_it_says_so(self):
        with self.assertRaisesRegex(nwt.Error, "no server has answered for 0.2 s"):
            nwt.Loader(["shared:/nothing"], patience=0.2)


class Servers(unittest.TestCase):
    def test_a_token_and_a_certificate(self):
        with self.assertRaisesRegex(nwt.Error, "the token is missing or wrong"):
            nwt.Loader([GIVEN["secret"]])
        nwt.Loader([GIVEN["secret"]], token="secret").close()
        with self.assertRaisesRegex(nwt.Error, "(?i)certificate.verify.failed"):  # at once
            nwt.Loader([GIVEN["tls"]], tls=True, patience=600)
        with self.assertRaisesRegex(nwt.Error, "(?i)not in peer certificate"):
            nwt.Loader(["localhost:" + GIVEN["tls"].split(":")[1]], tls=GIVEN["roots"], patience=600)
        with self.assertRaisesRegex(nwt.Error, "(?i)wrong.version.number"):  # it is sent no certificate
            nwt.Loader([GIVEN["secret"]], token="secret", tls=GIVEN["roots"], patience=600)
        with nwt.Loader([GIVEN["tls"]], tls=GIVEN["roots"]) as loader:
            self.assertEqual(len(list(loader)), len(loader))

    def test_a_bad_sample_is_an_error_that_names_it_and_the_server(self):
        with nwt.Loader([GIVEN["bad"]]) as loader, self.assertRaisesRegex(nwt.Error, "(?s)host.*sample 13.*the disk is on fire"):
            list(loader)

    def test_other_servers_are_an_error_that_names_both(self):
        for others in GIVEN["others"]:
            with (
                nwt.Loader(others) as loader,
                self.assertRaisesRegex(
                    nwt.Error, "server host.* has .*, server host.* has .*: files or options have changed, or aren't the same on all servers"
                ),
            ):
                while True:
                    list(loader)

    def test_without_a_server_it_says_so(self):
        with self.assertRaisesRegex(nwt.Error, "no server has answered for 0.2 s; 127.0.0.1:1: "):
            nwt.Loader(["127.0.0.1:1"], patience=0.2)

    def test_a_server_that_is_down_is_not_asked_for_batches(self):
        asked, get = [], nwt._servers.Server.get

        def counted(server, *args):
            asked.append(server.address)
            return get(server, *args)

        with unittest.mock.patch.object(nwt._servers.Server, "get", counted), nwt.Loader([GIVEN["drawing"][0], "127.0.0.1:1"], prefetch=2) as loader:
            for _ in range(5):
                self.assertEqual(len(list(loader)), len(loader))
                time.sleep(0.05)
        self.assertIn("127.0.0.1:1", asked)
        self.assertLessEqual(asked.count("127.0.0.1:1"), 2)

    def test_one_address_may_stand_alone(self):
        with nwt.Loader(GIVEN["drawing"][0]) as loader:
            self.assertEqual(len(list(loader)), len(loader))


class Processes(unittest.TestCase):
    def test_no_thread_is_left(self):
        with nwt.Loader([*GIVEN["drawing"], "127.0.0.1:1"]) as loader:
            for batch in loader:
                break
            list(loader)
            forgotten = iter(loader)
            next(forgotten)
            del forgotten, batch
        self.assertEqual([t.name for t in threading.enumerate() if t.name.startswith("nwt")], [])

    def test_a_fork_is_told_and_does_no_harm(self):
        with drawing() as loader:
            batches = iter(loader)
            next(batches)
            child = os.fork()
            if child == 0:
                try:
                    next(batches)
                except RuntimeError as error:
                    del batches
                    loader.close()
                    os._exit(0 if "make one in each process" in str(error) else 2)
                os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(len(list(batches)), len(loader) - 1)

    def test_an_interrupt_ends_it_at_once(self):
        for address in GIVEN["hanging"]:
            child = script(
                f"loader = nwt.Loader(['{address}'])\nprint(1, flush=True)\ntry:\n    next(iter(loader))\nexcept KeyboardInterrupt:\n    print('interrupted')"
            )
            with child:
                child.stdout.readline()
                time.sleep(0.1)
                child.send_signal(signal.SIGINT)
                self.assertEqual(child.stdout.read(), "interrupted\n")
            self.assertEqual(child.returncode, 0)

    def test_a_client_that_is_killed_or_keeps_all_harms_no_other(self):
        end = "os.kill(os.getpid(), signal.SIGKILL)"
        for keep in ("kept = [next(batches)]", "kept = [b for b, _ in zip(batches, range(9))]"):
            with script(f"batches = iter(nwt.Loader(['{GIVEN['shared']}']))\n{keep}\nprint(1, flush=True)\n{end}") as child:
                child.stdout.read()
            with nwt.Loader([GIVEN["shared"]]) as loader:
                self.assertEqual(len(list(loader)), len(loader))

    def test_a_program_ends_with_batches_under_way(self):
        for how in ("", "sys.exit()", "1/0"):
            child = script(f"batches = iter(nwt.Loader({GIVEN['drawing']}))\nnext(batches)\n{how}", stderr=subprocess.DEVNULL)
            with child:
                child.stdout.read()
            self.assertEqual(child.returncode, int(how == "1/0"))


if __name__ == "__main__":
    unittest.main()
