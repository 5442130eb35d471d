"""Runs another program, for scripts that measure."""
import subprocess
import sys


def run(command, env=None):
    """Returns what it printed. If it fails, so does the script, with its last words."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout
