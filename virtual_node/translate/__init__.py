"""Translation between an upper and a lower cluster: functions from plain dicts to plain dicts, without IO.

Functions never change their inputs. Results may share unchanged parts with the inputs.
"""
