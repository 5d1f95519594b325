"""Faces: a store behind the interfaces of agent frameworks, and the command line.

A face imports the public API and `holdall.core.face_api`. Nothing else in holdall imports a face.
"""
